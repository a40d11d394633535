"""What a release may install is written down to the byte, and what it consists of can be read by machines."""

import json
import re
import tomllib

import pytest
import sbom
from cyclonedx.schema import SchemaVersion
from cyclonedx.validation.json import JsonStrictValidator
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

PROJECT = tomllib.loads((sbom.ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
PINS = {pin.name: pin for pin in sbom.read_lock()}


def needs(extra: str) -> list[Requirement]:
    """What an extra asks for, those it consists of included."""
    asked = [Requirement(each) for each in PROJECT["optional-dependencies"][extra]]
    inner = [need for each in asked if each.name == sbom.OWN for name in each.extras for need in needs(name)]
    return [each for each in asked if each.name != sbom.OWN] + inner


def test_the_lock_has_every_package_that_is_needed_at_a_version_that_is_allowed():
    wanted = [Requirement(each) for each in PROJECT["dependencies"]] + needs("all")
    assert len(wanted) > len(PROJECT["dependencies"])
    for requirement in wanted:
        pin = PINS[canonicalize_name(requirement.name)]
        assert pin.version in requirement.specifier, f"{requirement} is locked at {pin.version}: run `make lock`"
        assert sbom.OWN in pin.wanted_by, pin


def test_every_package_of_the_lock_has_its_digests():
    assert [pin.name for pin in PINS.values() if not pin.hashes] == []


def test_the_lock_has_the_versions_that_are_tested():
    """constraints.txt is what the tests run with."""
    text = (sbom.ROOT / "constraints.txt").read_text(encoding="utf-8")
    tested = {canonicalize_name(name): version for name, version in re.findall(r"^([\w.-]+)==(\S+)$", text, re.M)}
    both = PINS.keys() & tested.keys()
    assert len(both) > 70
    assert {name: PINS[name].version for name in both} == {name: tested[name] for name in both}


def test_a_bill_of_materials_is_valid_and_names_every_package(tmp_path, monkeypatch):
    monkeypatch.setattr("sys.argv", ["sbom.py", "--out", str(tmp_path / "bill.json")])
    sbom.main()
    text = (tmp_path / "bill.json").read_text()
    validator = JsonStrictValidator(SchemaVersion.V1_6)
    assert validator.validate_str(text) is None
    assert validator.validate_str(text.replace('"library"', '"libary"', 1)) is not None
    bill = json.loads(text)
    assert {each["name"]: each["version"] for each in bill["components"]} == {n: p.version for n, p in PINS.items()}
    assert all(each["externalReferences"][0]["hashes"] for each in bill["components"])
    licensed = [each["name"] for each in bill["components"] if "licenses" in each]
    assert {"torch", "numpy", "safetensors", "fastapi"} <= set(licensed)


def test_the_graph_of_a_bill_leads_from_the_project_to_every_package():
    graph = {each["ref"]: each["dependsOn"] for each in sbom.describe(list(PINS.values()), "1")["dependencies"]}
    seen, todo = set(), [sbom.OWN]
    while todo:
        name = todo.pop()
        if name not in seen:
            seen.add(name)
            todo += graph[name]
    assert seen == {sbom.OWN, *PINS}
    assert "sympy" in graph["torch"]
    assert "sympy" not in graph[sbom.OWN]


def test_a_line_that_the_lock_can_not_have_is_refused(tmp_path):
    path = tmp_path / "lock"
    path.write_text("torch==2.13.0 \\\n    --hash=sha256:" + "0" * 64 + "\n    # via pellucid (pyproject.toml)\n")
    assert sbom.read_lock(path) == [sbom.Pin("torch", "2.13.0", "", ("0" * 64,), ("pellucid",))]
    path.write_text("git+https://example.org/torch\n")
    with pytest.raises(ValueError, match="line 1 is no package, hash or comment"):
        sbom.read_lock(path)
