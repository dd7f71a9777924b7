"""Ray is imported here first, with a token, as the tests that read the builder need it."""

import os
import warnings

os.environ["RAY_AUTH_MODE"] = "token"

with warnings.catch_warnings():
    # Serve 2.60 declares fields in a way that pydantic 2.14 deprecates.
    warnings.simplefilter("ignore", DeprecationWarning)
    import ray.serve  # noqa: F401
