"""The flare engine: each site is a process of its own, reached through NVIDIA FLARE.

    coordinator's process       FLARE server's job process      party's job process
    FlareEngine  --socket-->    CollabRelay  --mutual TLS-->    CollabParty -> PartyHost -> Site

`collab` is the only module that knows FLARE. The relay hands on bytes and reads none of them.
"""
