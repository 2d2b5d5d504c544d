"""Headers of requests and responses.

`headers`, `admin` and `namesrv` declare them; `fast_encode` and `fast_decode` serve the hottest.
"""
