"""What importing costs."""

import subprocess
import sys
import types

import pytest

import coalmine

HEAVY = ("torch", "altair", "dp_accounting", "scipy", "numpy", "rich", "pydantic", "sklearn")


@pytest.mark.parametrize("code", ["import coalmine", "import coalmine.cli", "import coalmine.claims"])
def test_importing_loads_nothing_heavy(code):
    heavy = HEAVY if code == "import coalmine" else HEAVY[:3]
    check = f"{code}, sys; print([m for m in {heavy!r} if m in sys.modules])"
    found = subprocess.run([sys.executable, "-c", check], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "[]"


def test_help_loads_nothing_heavy():
    check = "import sys; sys.argv = ['coalmine', '--help']; from coalmine.cli.main import main"
    heavy = [name for name in HEAVY if name != "rich"]
    check += f"\ntry: main()\nexcept SystemExit: pass\nprint([m for m in {heavy!r} if m in sys.modules])"
    found = subprocess.run([sys.executable, "-c", check], capture_output=True, text=True, check=True)
    assert found.stdout.strip().endswith("[]")


def test_the_statistics_never_load_torch_nor_the_slow_parts_of_scipy():
    check = "import coalmine.stats, sys; print([m for m in ('torch', 'scipy.stats') if m in sys.modules])"
    found = subprocess.run([sys.executable, "-c", check], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "[]"


def test_every_public_name_resolves_and_has_a_docstring():
    for name in coalmine.__all__:
        assert getattr(coalmine, name).__doc__, name
    for package in (coalmine.stats, coalmine.simulation, coalmine.simulation.data, coalmine.simulation.models):
        for name, value in vars(package).items():
            if name.startswith("_") or not str(getattr(value, "__module__", "")).startswith("coalmine."):
                continue
            assert value.__doc__ or not isinstance(value, type | types.FunctionType), name


def test_data_never_loads_torch_nor_scikit_learn():
    check = "import coalmine.simulation.data, coalmine.protocol, sys\n"
    check += "print([m for m in ('torch', 'sklearn') if m in sys.modules])"
    found = subprocess.run([sys.executable, "-c", check], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "[]"


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
