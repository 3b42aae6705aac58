"""Run the notebooks of ``docs/tutorials`` and store what they show. ``python docs/run_notebooks.py [NAME...]``.

Needs the extra ``docs``. No times, versions or paths of this machine are stored, so that running them again changes
nothing but results.
"""

import sys
from pathlib import Path

import nbformat
from nbclient import NotebookClient

FOLDER = Path(__file__).with_name("tutorials")


def run(path: Path) -> None:
    """Run a notebook in a new kernel, and write it back with its output."""
    book = nbformat.read(path, as_version=4)
    NotebookClient(book, timeout=600, record_timing=False).execute(cwd=str(FOLDER))
    book.metadata = {"kernelspec": book.metadata.kernelspec, "language_info": {"name": "python"}}
    nbformat.write(book, path)


if __name__ == "__main__":
    for notebook in sorted(FOLDER.glob("*.ipynb")):
        if notebook.stem in (sys.argv[1:] or [notebook.stem]):
            run(notebook)
