"""What importing costs."""

import subprocess
import sys
import types

import pytest

import coalmine

HEAVY = ("torch", "altair", "dp_accounting", "scipy", "numpy", "rich", "pydantic", "sklearn")


# In this order in one process: what each of them must not have loaded.
LAZY = [
    ("import coalmine", HEAVY),
    ("import coalmine.stats", ("torch", "scipy.stats")),
    ("import coalmine.claims", ("torch", "altair", "dp_accounting")),
    ("import coalmine.simulation.data, coalmine.protocol", ("torch", "sklearn")),
    (
        "from coalmine.methods import registry; [registry.get(method.name) for method in registry.runnable()]",
        ("torch", "altair"),
    ),
    ("import coalmine.cli", ("torch", "altair", "dp_accounting")),
]


def test_importing_loads_nothing_heavy():
    check = "import sys\n"
    for code, heavy in LAZY:
        check += f"{code}\nprint([name for name in {heavy!r} if name in sys.modules])\n"
    loaded = subprocess.run([sys.executable, "-c", check], capture_output=True, text=True, check=True).stdout
    assert dict(zip([code for code, _ in LAZY], loaded.splitlines(), strict=True)) == {code: "[]" for code, _ in LAZY}


def test_help_loads_nothing_heavy():
    check = "import sys; sys.argv = ['coalmine', '--help']; from coalmine.cli.main import main"
    heavy = [name for name in HEAVY if name != "rich"]
    check += f"\ntry: main()\nexcept SystemExit: pass\nprint([m for m in {heavy!r} if m in sys.modules])"
    found = subprocess.run([sys.executable, "-c", check], capture_output=True, text=True, check=True)
    assert found.stdout.strip().endswith("[]")


def test_every_public_name_resolves_and_has_a_docstring():
    for name in coalmine.__all__:
        assert getattr(coalmine, name).__doc__, name
    for package in (coalmine.stats, coalmine.simulation, coalmine.simulation.data, coalmine.simulation.models):
        for name, value in vars(package).items():
            if name.startswith("_") or not str(getattr(value, "__module__", "")).startswith("coalmine."):
                continue
            assert value.__doc__ or not isinstance(value, type | types.FunctionType), name


def test_an_unknown_name_is_an_attribute_error():
    with pytest.raises(AttributeError, match="no attribute 'estmate'"):
        coalmine.estmate  # noqa: B018


def test_without_flower_its_integration_says_what_to_install():
    check = "import sys; sys.modules['flwr'] = None; import coalmine.integrations.flower"
    found = subprocess.run([sys.executable, "-c", check], capture_output=True, text=True, check=False)
    assert found.returncode == 1
    assert "pip install 'coalmine[flower]'" in found.stderr.strip().splitlines()[-1]


@pytest.mark.slow
def test_without_opacus_its_integration_says_what_to_install_and_all_else_imports():
    check = (
        "import sys; sys.modules['opacus'] = sys.modules['flwr'] = sys.modules['datasets'] = None\n"
        "import pkgutil, importlib, coalmine\n"
        "for module in pkgutil.walk_packages(coalmine.__path__, 'coalmine.'):\n"
        "    if '.integrations.' not in module.name and not module.name.endswith('__main__'):\n"
        "        importlib.import_module(module.name)\n"
        "print(len(sys.modules) > 0)\n"
        "import coalmine.integrations.opacus"
    )
    found = subprocess.run([sys.executable, "-c", check], capture_output=True, text=True, check=False)
    assert (found.returncode, found.stdout.strip()) == (1, "True")
    assert "pip install 'coalmine[opacus]'" in found.stderr.strip().splitlines()[-1]
