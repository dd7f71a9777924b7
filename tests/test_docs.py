"""The documents say what the code does: files, make targets and settings that they name exist."""

import re
import subprocess
from pathlib import Path

import pytest

from cluster.commands.settings import with_settings_table
from cluster.settings import SettingError

ROOT = Path(__file__).parents[1]
DOCUMENTS = ["README.md", "CONTRIBUTING.md", "CHANGELOG.md", "docs/routing.md", "docs/failures.md"]
FILE_NAME = re.compile(
    r"`((?:[\w.-]+/)+[\w.-]*|\.ci/run|[\w.-]+\.(?:md|toml|py|txt)|LICENSE|Makefile)`"
)
MADE_BY_THE_READER = {"pagoda.toml", "errors.py"}


def named_files(text):
    return set(FILE_NAME.findall(text)) - MADE_BY_THE_READER


@pytest.mark.parametrize("document", DOCUMENTS)
def test_every_file_that_is_named_exists(document):
    missing = [n for n in named_files((ROOT / document).read_text()) if not (ROOT / n).exists()]
    assert missing == []


def test_a_file_that_is_named_is_recognised_as_one():
    text = (
        "see `cluster/ray_settings.py`, `replicas/`, `.ci/run`, `LICENSE`; not `block_size` or `n`"
    )
    assert named_files(text) == {"cluster/ray_settings.py", "replicas/", ".ci/run", "LICENSE"}


@pytest.mark.parametrize("document", DOCUMENTS)
def test_every_make_target_that_is_named_exists(document):
    targets = set(re.findall(r"^([a-z0-9-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    named = re.findall(
        r"(?:^|`)make (?:-k )?([a-z0-9-]+)", (ROOT / document).read_text(), re.MULTILINE
    )
    assert set(named) <= targets


def test_both_commands_of_the_readme_are_among_them():
    named = re.findall(r"^make ([a-z]+)", (ROOT / "README.md").read_text(), re.MULTILINE)
    assert {"serve", "test"} <= set(named)


def test_the_table_of_settings_is_the_one_that_the_dataclasses_give():
    text = (ROOT / "README.md").read_text()
    assert with_settings_table(text) == text, "run: pagoda settings --write README.md"


def test_a_document_without_a_place_for_the_table_is_refused():
    with pytest.raises(SettingError, match="expected a file with the lines"):
        with_settings_table("# Nothing here\n")


def test_the_toml_of_the_readme_is_accepted(tmp_path):
    from cluster.config_loading import load_config

    toml = re.search(r"```toml\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)[1]
    file = tmp_path / "pagoda.toml"
    file.write_text(toml)
    config = load_config({"config": str(file)}, {})
    assert (config.gateway.port, config.engine.scheduler.max_num_seqs) == (8123, 64)


def test_make_alone_lists_every_target_for_users():
    listed = subprocess.run(
        ["make", "-C", str(ROOT)], capture_output=True, text=True, timeout=60, check=True
    ).stdout
    for target in ("serve", "check", "test", "bench", "clean"):
        assert re.search(rf"^make {target}\s+\S", listed, re.MULTILINE)


def test_every_test_that_the_page_on_failures_names_exists():
    named = set(re.findall(r"`(test_\w+)`", (ROOT / "docs/failures.md").read_text()))
    written = {
        name
        for path in (ROOT / "tests").rglob("test_*.py")
        for name in re.findall(r"def (test_\w+)", path.read_text())
    }
    assert len(named) > 40
    assert named - written == set()
