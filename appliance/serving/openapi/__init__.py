"""The API as an OpenAPI document, made from the routes and from the structs that decode requests."""
