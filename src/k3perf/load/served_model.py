"""The name of the model that a server offers, from its ``/v1/models``."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from typing import Final

from k3perf.errors import MeasurementInvalid, UsageError
from k3perf.load.pool import tls_context
from k3perf.load.request_form import RequestForm
from k3perf.load.wire import Endpoint

_TIMEOUT_S: Final = 10.0
_LARGEST_BYTES: Final = 1 << 22
_SHOWN_MODELS: Final = 5


def served_model(base_url: str, form: RequestForm) -> str:
    """The only model of the server, or the first that is not an adapter of another.

    Raises MeasurementInvalid if the server does not answer, and UsageError if it offers
    several models or none.
    """
    endpoint = Endpoint.parse(base_url)
    url = f"{endpoint.base_url}/v1/models"
    request = urllib.request.Request(url, headers=dict(form.headers))  # noqa: S310 - http or https, checked by Endpoint
    context = tls_context(form) if endpoint.secure else None
    try:
        with urllib.request.urlopen(request, timeout=_TIMEOUT_S, context=context) as answer:  # noqa: S310
            document = json.loads(answer.read(_LARGEST_BYTES))
        models = [str(entry["id"]) for entry in document["data"] if not entry.get("parent")]
    except urllib.error.HTTPError as error:
        raise UsageError(
            f"GET {url} was answered with status {error.code}. Set --model-name, and check"
            " --base-url and --api-key-env."
        ) from None
    except OSError as error:
        reason = getattr(error, "reason", error)
        raise MeasurementInvalid(
            f"no server answers at {base_url}: {str(reason).lower()}. Start it, or correct the"
            " address."
        ) from None
    except (ValueError, LookupError, TypeError, AttributeError):
        raise UsageError(f"GET {url} does not list models. Set --model-name.") from None
    if len(models) != 1:
        offered = ", ".join(models[:_SHOWN_MODELS]) or "none"
        raise UsageError(f"{base_url} offers these models: {offered}. Set --model-name.")
    return models[0]
