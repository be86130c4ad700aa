"""One engine under ``python -m mapie_claps.benchmarks`` and ``...experiments``.

::

    arguments options that commands share
    data      CSV files and data sets, seeded splits, hash of the content
    store     finished runs on disk, each under a key of all that it depends on
    runner    the runs that are not stored yet: processes, progress bar, interruption
    fitted    functions in the form of a fitted estimator, as MAPIE wants it
    rows      rows of finished runs: some of them, pairs of the same split
    scoring   coverage, width and score; mean ± error; exact limits of the coverage
    text      tables in Markdown and CSV

A study makes a list of :class:`~mapie_claps.studies.runner.Run`, hands it to
:func:`~mapie_claps.studies.runner.run_missing` and makes its tables from the rows of
the runs that are finished.
"""
