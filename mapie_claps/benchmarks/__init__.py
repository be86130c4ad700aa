"""Benchmarks, run as ``python -m mapie_claps.benchmarks COMMAND``.

``--help`` lists the commands: each is a module of that name, and what it is made of has
its name in front (``_peer_…``, ``_speed_…``). Most need
``pip install "mapie-claps[bench]"``. The engine below them is
:mod:`mapie_claps.studies`.
"""
