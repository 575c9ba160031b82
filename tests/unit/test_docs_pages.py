"""The pages people read: short sentences, links that lead somewhere, an index of every page."""

import re
import statistics
from collections.abc import Iterator
from importlib.machinery import SourceFileLoader
from importlib.util import module_from_spec, spec_from_loader
from pathlib import Path
from types import ModuleType

REPOSITORY = Path(__file__).resolve().parents[2]
PAGES = sorted({*REPOSITORY.glob("*.md"), *(REPOSITORY / "docs").rglob("*.md")})


def figures() -> ModuleType:
    loader = SourceFileLoader("house_figures", str(REPOSITORY / "scripts" / "house-figures"))
    spec = spec_from_loader("house_figures", loader)
    assert spec is not None
    module = module_from_spec(spec)
    loader.exec_module(module)
    return module


def anchors(page: Path) -> set[str]:
    headings = re.findall(r"^#+ (.*)$", page.read_text(), flags=re.MULTILINE)
    plain = (re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading).lower() for heading in headings)
    return {re.sub(r"[^\w\- ]", "", heading).replace(" ", "-") for heading in plain}


def links(page: Path) -> Iterator[tuple[Path, str]]:
    """Each link to a file of the repository, with its anchor."""
    for link in re.findall(r"\]\(([^)\s]+)\)", page.read_text()):
        if not link.startswith("http"):
            name, _, anchor = link.partition("#")
            yield (page.parent / name).resolve() if name else page, anchor


def test_sentences_are_short() -> None:
    lengths = figures().sentence_lengths()
    assert len(lengths) > 1000
    assert max(lengths) <= 30, "split the sentences that are longer than 30 words (docs/style.md)"
    assert statistics.median(lengths) <= 13


def test_every_link_leads_somewhere() -> None:
    dead = [
        f"{page.relative_to(REPOSITORY)}: {target.name}#{anchor}"
        for page in PAGES
        for target, anchor in links(page)
        if not target.exists() or (anchor and anchor not in anchors(target))
    ]
    assert not dead


def test_the_index_lists_every_page() -> None:
    index = REPOSITORY / "docs" / "index.md"
    listed = {target for target, _ in links(index)}
    pages = set((REPOSITORY / "docs").rglob("*.md")) - {index}
    assert not pages - listed


def test_the_rules_of_the_gate_stay_on_one_page() -> None:
    assert len((REPOSITORY / "docs" / "gate.md").read_text().splitlines()) <= 150
