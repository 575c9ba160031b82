"""The generated pages are what the code says today."""

from k3perf.report.reference_docs import configs_page, metrics_page


def test_metrics_page_is_current(repository):
    assert (repository / "docs" / "metrics.md").read_text() == metrics_page(), (
        "run scripts/make-docs"
    )


def test_configs_page_is_current(repository):
    assert (repository / "docs" / "configs.md").read_text() == configs_page(), (
        "run scripts/make-docs"
    )
