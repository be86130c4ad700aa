"""The experiments of the CLAPS paper, each with one command.

::

    python -m mapie_claps.experiments NAME|all|report --help

The modules, from the bottom up::

    protocol                   its numbers
    methods                    the six methods on one split
    runs                       what one run of each experiment computes
    experiment                 the table of experiments and their runs
    tables, figures            ours beside the published figures in ``published/``
    claims, report             the paper's claims, from the table ``claims.csv``

Runs are stored and computed by :mod:`mapie_claps.studies`. Needs MAPIE 1.5 or later.
"""
