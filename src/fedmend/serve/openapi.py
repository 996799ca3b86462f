"""The HTTP interface of ``fedmend serve`` as an OpenAPI document."""

from __future__ import annotations

from typing import Any

from fedmend._version import __version__


def document() -> dict[str, Any]:
    """OpenAPI 3.1 of what `serving` answers."""
    row = {
        "type": "object",
        "required": ["id"],
        "properties": {
            "id": {"type": ["string", "integer"]},
            "unknown": {"const": True, "description": "nobody here has this id"},
            "used": {"type": "array", "items": {"type": "string"}},
            "absent": {
                "type": "object",
                "description": "partners without a part in this answer, and why",
                "additionalProperties": {"enum": ["not known", "down", "rests", "late", "refused"]},
            },
            "prediction": {"type": ["string", "number"]},
            "uncertainty": {"type": "number", "minimum": 0, "maximum": 1},
        },
        "patternProperties": {r"^p\(.*\)$": {"type": "number", "minimum": 0, "maximum": 1}},
    }
    answer = {
        "type": "object",
        "required": ["method", "predictions", "notes"],
        "properties": {
            "model": {"type": "string", "description": "RUN/METHOD"},
            "method": {"type": "string"},
            "predictions": {
                "type": "object",
                "additionalProperties": {"type": "array", "items": row},
            },
            "notes": {"type": "array", "items": {"type": "string"}},
        },
    }
    ids = {
        "type": "object",
        "required": ["ids"],
        "additionalProperties": False,
        "properties": {
            "ids": {
                "type": "array",
                "minItems": 1,
                "maxItems": 10000,
                "items": {"type": ["string", "integer"]},
            },
            "deadline_ms": {"type": "number", "exclusiveMinimum": 0, "maximum": 60000},
        },
    }
    rows = {
        "type": "object",
        "description": "new rows, by party",
        "additionalProperties": {"type": "array", "items": {"type": "object"}},
    }
    problems = {
        "400": "no JSON",
        "401": "no token of a known asker",
        "413": "too large",
        "422": "ids or rows that do not fit",
        "429": "over the quota of a person",
        "503": "the queue is full; Retry-After says when to ask again",
    }
    error = {"type": "object", "required": ["error"], "properties": {"error": {"type": "string"}}}
    predict = {
        "operationId": "predict",
        "requestBody": {
            "required": True,
            "content": {"application/json": {"schema": {"oneOf": [ids, rows]}}},
        },
        "responses": {
            "200": _content("answers, whoever of the partners took part", answer),
            **{status: _content(words, error) for status, words in problems.items()},
        },
    }
    secured: dict[str, Any] = {"security": [{"token": []}, {}]}
    plain = {"responses": {"200": {"description": "text of Prometheus"}}}
    return {
        "openapi": "3.1.0",
        "info": {"title": "fedmend serve", "version": __version__},
        "components": {"securitySchemes": {"token": {"type": "http", "scheme": "bearer"}}},
        "paths": {
            "/predict": {"post": predict | secured},
            "/models/{run}/{method}/predict": {
                "post": predict | secured | {"operationId": "predict_by"},
                "parameters": [
                    {"name": each, "in": "path", "required": True, "schema": {"type": "string"}}
                    for each in ("run", "method")
                ],
            },
            "/": {"get": {"responses": {"200": _content("what the model expects", {})}}},
            "/health": {"get": {"responses": {"200": _content("who is there", {})}}},
            "/metrics": {"get": plain},
        },
    }


def _content(words: str, schema: dict[str, Any]) -> dict[str, Any]:
    return {"description": words, "content": {"application/json": {"schema": schema}}}
