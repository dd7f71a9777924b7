"""Import tests of DESIGN 1, each in a fresh interpreter: what loads what, and what does not."""

import subprocess
import sys

import pytest

HEAVY = {"torch", "transformers", "triton"}
# Module, and what must not be loaded by it.
LIGHT = {
    "kvstore.block_hash": HEAVY | {"ray", "redis"},
    "router.request_router": HEAVY | {"ray", "redis"},
    "loadtest.__main__": HEAVY | {"ray", "redis", "cluster", "replicas", "router", "kvstore"},
    "cluster.cli": HEAVY | {"ray", "redis", "fastapi", "grpc"},
    "cluster.commands.serve": HEAVY | {"ray", "redis", "fastapi", "grpc"},
    "cluster.launch.service": HEAVY | {"ray", "fastapi", "grpc"},
    "cluster.gateway.http_app": HEAVY | {"ray"},
    "cluster.gateway.gateway_deployment": HEAVY,
    "cluster.app": HEAVY,
    "replicas.engine": HEAVY | {"ray", "redis"},
    "replicas.core_messages": HEAVY | {"ray", "redis"},
}
# What replicas may ask for beside the standard library and floor 1: the four that a GPU machine
# has, and what transformers itself cannot do without.
REPLICAS_MAY_IMPORT = {
    *("torch", "triton", "transformers", "numpy"),
    *("safetensors", "tokenizers", "tqdm"),
}
EVERY_PACKAGE = "kvstore replicas router cluster loadtest"


def run_fresh(code: str) -> str:
    """Standard output of `code` in an interpreter that has imported nothing yet."""
    ended = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", code],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr
    return ended.stdout.strip()


@pytest.mark.parametrize("module", LIGHT)
def test_a_light_module_loads_nothing_heavy(module):
    code = f"""
import importlib, sys
importlib.import_module({module!r})
print(sorted({LIGHT[module]!r} & set(sys.modules)))
"""
    assert run_fresh(code) == "[]"


def test_the_engine_needs_nothing_that_a_gpu_machine_lacks():
    """Only reading a GGUF file asks for one thing more, and only once there is one to read."""
    code = """
import importlib, importlib.util, pkgutil, sys
from importlib.abc import MetaPathFinder

ASKED = set()
# What torch and transformers themselves try to import is theirs to answer for.
for name in ("torch", "transformers", "numpy", "safetensors.torch", "tqdm"):
    importlib.import_module(name)

class Watch(MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        caller = sys._getframe(1)
        while "importlib" in caller.f_code.co_filename:
            caller = caller.f_back
        if caller.f_globals.get("__name__", "").startswith(("replicas", "kvstore")):
            ASKED.add(name.partition(".")[0])
        return None

sys.meta_path.insert(0, Watch())
import replicas
for module in pkgutil.walk_packages(replicas.__path__, "replicas."):
    if not module.name.endswith("__main__") and ".gguf_" not in module.name:
        importlib.import_module(module.name)
house = {"replicas", "kvstore"}
print(*sorted(ASKED - house - set(sys.stdlib_module_names)))
"""
    assert set(run_fresh(code).split()) <= REPLICAS_MAY_IMPORT


def test_no_module_bears_a_name_of_the_standard_library():
    """Such a name at the top level would shadow it for everybody."""
    assert not set(EVERY_PACKAGE.split()) & set(sys.stdlib_module_names)
