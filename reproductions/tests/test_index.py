"""The page of all claims counts them correctly."""

import re
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

PAGE = Path(__file__).parents[1] / "docs" / "index.md"


def test_the_page_of_claims_counts_them():
    text = PAGE.read_text(encoding="utf-8")
    statuses = re.findall(r"^\| [^|]+ \| [^|]+ \| (\*\*(?:agrees|in shape|no|not tried)\*\*[^|]*) \|", text, re.M)
    agree = [status for status in statuses if "agrees" in status or "in shape" in status]
    stated = re.search(r"Of (\d+)\s+claims, (\d+) agree or agree in shape", text)
    assert stated is not None
    assert (len(statuses), len(agree)) == tuple(map(int, stated.groups()))
