"""The experiments of the CLAPS paper, each with one command.

::

    python -m mapie_claps.experiments NAME|all|report --help

The modules, from the bottom up::

    networks, distributional   what the baselines need beside MAPIE and CLAPS
    methods                    the six methods on one split
    synthetic, benchmark,
    sensitivity                what one run of each experiment computes
    runs                       many runs, in parallel, each kept on disk once finished
    tables, figures, report    ours beside the published figures in ``published/``

Needs MAPIE 1.5 or later.
"""
