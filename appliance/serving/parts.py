"""What a route is given besides its request."""

from __future__ import annotations

from litestar.di import NamedDependency

from appliance.serving.front_door import FrontDoor

TheFrontDoor = NamedDependency[FrontDoor]
