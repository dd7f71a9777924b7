"""Settings of the whole service, composed from each package's own."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class GatewayConfig:
    """The HTTP side.

    api_keys: any of them opens every route except /health and /version; empty means open.
    max_body_bytes: a larger request body is answered with 413. max_num_choices: largest n.
    served_model_name: the name clients use; empty takes the model's own.
    """

    host: str = "127.0.0.1"
    port: int = 8000
    num_gateways: int = 1
    api_keys: tuple[str, ...] = ()
    max_body_bytes: int = 4 * 1024 * 1024
    max_num_choices: int = 128
    served_model_name: str = ""
