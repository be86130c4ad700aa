# Each target sets up what it needs, on a machine with Python >= 3.11 and pip.
PYTHON ?= python3
VENV := .venv
OLD := .venv-mapie09
NEXT := .venv-prereleases
UV := $(VENV)/bin/uv
# The tests train small networks: one thread each is fastest. They start processes, which
# should not compile what they import each time.
export OMP_NUM_THREADS ?= 1
test-newest test-mapie09 test-prereleases: export PYTHONDONTWRITEBYTECODE =

.PHONY: demo test lint test-newest test-mapie09 test-prereleases docs \
	docs-inventories clean \
	paper peers truth around coverage speed fuzz mapie-tests

demo: $(VENV)/.installed-demo
	$(VENV)/bin/python docs/demo.py

test: lint test-newest test-mapie09

lint: $(VENV)/.installed
	$(VENV)/bin/ruff check .
	$(VENV)/bin/ruff format --check .
	$(VENV)/bin/mypy

test-newest: $(VENV)/.installed
	$(VENV)/bin/python -m pytest -n 2 --cov --cov-report=term

# MAPIE 0.9.2 and the lowest version of every direct dependency. torch is named because
# the newest torchvision, which laplace-torch asks for, would lift it.
test-mapie09: $(OLD)/.installed
	$(OLD)/bin/python -m pytest -n 2 tests

# What the next releases of the hosts will break; also beyond the limits of pyproject.toml.
test-prereleases: $(NEXT)/.installed
	$(NEXT)/bin/python -m pytest -n 2

# The site, with the examples run, warnings as errors and a check of its links.
# Formulas need MathJax: with npm it is put beside the pages, else they load it from the
# web when they are read.
docs: $(VENV)/.installed-docs docs/_static/mathjax.js
	$(VENV)/bin/python -m sphinx -W --keep-going -b html docs docs/_build/html
	$(VENV)/bin/python docs/check_links.py docs/_build/html

# Links into the pages of scikit-learn, MAPIE, torch and NumPy; needs a network.
docs-inventories: $(VENV)/.installed
	$(VENV)/bin/python docs/fetch_inventories.py

# Each set of extras joins the same environment; the demo needs little. uv installs, so
# that environments go without a pip of their own, which would take longest to set up.
$(UV):
	$(PYTHON) -m venv --without-pip $(VENV)
	$(PYTHON) -m pip --python $(VENV)/bin/python install --quiet uv

# laplace-torch asks for torchvision, but does without. It would take longest to load.
$(VENV)/.installed-demo: pyproject.toml | $(UV)
	echo torchvision | $(UV) pip install --quiet --python $(VENV)/bin/python \
		--excludes - -e ".[plot]"
	touch $@

$(VENV)/.installed: pyproject.toml | $(UV)
	$(UV) pip install --quiet --python $(VENV)/bin/python --upgrade -e ".[dev]"
	touch $@

$(VENV)/.installed-docs: pyproject.toml | $(VENV)/.installed
	$(UV) pip install --quiet --python $(VENV)/bin/python -e ".[docs]"
	touch $@

docs/_static/mathjax.js:
	mkdir -p docs/_build/npm
	cd docs/_build/npm && npm pack --silent mathjax@3.2.2 && tar xzf mathjax-3.2.2.tgz \
		&& cp package/es5/tex-svg.js ../../_static/mathjax.js \
		|| echo "npm is missing: formulas will be loaded from the web"

$(OLD)/.installed: pyproject.toml | $(VENV)/.installed
	$(PYTHON) -m venv --without-pip $(OLD)
	$(UV) pip install --quiet --python $(OLD)/bin/python --resolution lowest-direct \
		-e ".[tests]" "mapie==0.9.2" "torch==2.6.0"
	touch $@

$(NEXT)/.installed: pyproject.toml | $(UV)
	$(PYTHON) -m venv --without-pip $(NEXT)
	$(UV) pip install --quiet --python $(NEXT)/bin/python -e ".[dev]"
	$(UV) pip install --quiet --python $(NEXT)/bin/python --upgrade --prerelease allow \
		mapie laplace-torch torch scikit-learn
	touch $@

# Studies: DATA is a folder with the CSV files of the data sets, target last. Finished
# runs are kept, so that a target goes on where it stopped. RUN adds options.
DATA ?= data
JOBS ?= 2

paper: $(VENV)/.installed
	$(VENV)/bin/python docs/studies/paper.py --data $(DATA) --out docs/paper_results --jobs $(JOBS) $(RUN)

peers: $(VENV)/.installed
	$(VENV)/bin/python docs/studies/peers.py --data $(DATA) --out docs/benchmarks/peers --jobs $(JOBS) $(RUN)

truth: $(VENV)/.installed
	$(VENV)/bin/python docs/studies/truth.py --data $(DATA) --out docs/benchmarks/truth --jobs $(JOBS) $(RUN)

around: $(VENV)/.installed
	$(VENV)/bin/python docs/studies/around.py --data $(DATA) --out docs/benchmarks/around --jobs $(JOBS) $(RUN)

coverage: $(VENV)/.installed
	$(VENV)/bin/python docs/studies/coverage.py --out docs/trust --jobs $(JOBS) $(RUN)

speed: $(VENV)/.installed
	$(VENV)/bin/python docs/studies/speed.py --out docs/benchmarks/speed $(RUN)

fuzz: $(VENV)/.installed
	$(VENV)/bin/python tests/fuzz.py --cases 5000 $(RUN)

mapie-tests: $(VENV)/.installed
	$(VENV)/bin/python tests/mapie_own_tests.py $(RUN)

clean:
	rm -rf $(VENV) $(OLD) $(NEXT) .mypy_cache .ruff_cache .pytest_cache .coverage docs/_build docs/_static/mathjax.js
