"""Benchmarks, run as ``python -m mapie_claps.benchmarks COMMAND``.

::

    peers      CLAPS against tuned peers; a new peer is an entry in _peer_table
    epistemic  what the epistemic term brings where training data are sparse
    tradeoff   accuracy against time
    coverage   coverage over many replications, against its exact law
    fuzz       random input and parameters
    speed      time and memory
    large      data larger than memory

``peers`` and ``speed`` need ``pip install "mapie-claps[bench]"``. The engine below them
is :mod:`mapie_claps.studies`.
"""
