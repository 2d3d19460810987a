# Every target sets up what it needs in .venv; python3 (3.11 or later), git and make are enough.
PYTHON ?= python3
BIN := .venv/bin

.PHONY: demo test test-all check format lint types docs build examples experiments constraints clean

demo: .venv/ready  ## run the main jobs at a small size
	$(BIN)/cogd demo

test: .venv/ready  ## the fast tests
	$(BIN)/pytest -m "not slow"

test-all: .venv/ready  ## every test
	$(BIN)/pytest

check: lint types test docs build  ## the whole gate

format: .venv/ready
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

lint: .venv/ready
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .

types: .venv/ready
	$(BIN)/mypy

docs: .venv/ready  ## the documentation, in build/docs
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet

build: .venv/ready  ## wheel and sdist, and the wheel in an empty environment
	rm -rf dist
	$(BIN)/python -m build --outdir dist . -q
	.ci/try-wheel dist/*.whl

examples: .venv/ready  ## what the documentation shows of the examples: pictures and what they print
	for name in imaging pruning training optimization; do \
		$(BIN)/python examples/$$name.py -o docs/examples/$$name.png > docs/examples/$$name.txt || exit 1; done
	$(BIN)/python -c "import hashlib, pathlib; [print(hashlib.sha256(p.read_bytes()).hexdigest(), p.name) \
		for p in sorted(pathlib.Path('examples').glob('[!w]*.py'))]" > docs/examples/sha256.txt

experiments: .venv/ready  ## every table and figure of the paper that is implemented
	for script in experiments/figure_*.py experiments/table_*.py; do [ ! -e $$script ] || $(BIN)/python $$script || exit 1; done

constraints: .venv/ready  ## pin what is installed now
	$(BIN)/pip freeze --exclude-editable --exclude pip --exclude setuptools | sed "s/+cpu$$//" > constraints.txt

.venv/ready: pyproject.toml constraints.txt
	$(PYTHON) -c "import sys; assert sys.version_info >= (3, 11), f'CoGD needs Python 3.11 or later; {sys.executable} is {sys.version.split()[0]}'"
	@echo "Installing what CoGD and its tests need into .venv: about 2 GB, once."
	$(PYTHON) -m venv .venv
	$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt -e ".[dev]"
	touch $@

clean:
	rm -rf .venv dist build
