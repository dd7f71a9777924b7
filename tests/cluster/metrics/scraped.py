"""Reads what a scrape says, with prometheus_client's own parser."""

from prometheus_client.parser import text_string_to_metric_families

CUMULATIVE = ("_total", "_bucket", "_count", "_sum")


def samples_of(text):
    """Every sample by name and labels, and the type of its family."""
    found, kinds = {}, {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            key = (sample.name, tuple(sorted(sample.labels.items())))
            assert key not in found, f"{key} twice"
            found[key] = sample.value
            kinds[key] = family.type
    return found, kinds


def is_total(key, kinds):
    """Whether it must never fall."""
    return kinds[key] in ("counter", "histogram") and key[0].endswith(CUMULATIVE)
