"""Checks values against the part of JSON Schema that /openapi.json uses."""

from typing import Any

_TYPES = {
    "null": type(None), "object": dict, "array": list, "string": str, "boolean": bool,
    "integer": int, "number": (int, float),
}


def _is_type(value: Any, name: str) -> bool:
    if isinstance(value, bool) and name != "boolean":
        return False
    return isinstance(value, _TYPES[name])


def problems(value: Any, schema: dict[str, Any], document: dict[str, Any],
             place: str = "$") -> list[str]:
    """What is wrong with `value`; empty: nothing."""
    if "$ref" in schema:
        target: Any = document
        for part in schema["$ref"].removeprefix("#/").split("/"):
            target = target[part]
        return problems(value, target, document, place)
    found: list[str] = []
    names = schema.get("type", [])
    names = [names] if isinstance(names, str) else names
    if names and not any(_is_type(value, name) for name in names):
        return [f"{place} is {value!r}, no {names}"]
    if "enum" in schema and value not in schema["enum"]:
        found.append(f"{place} is {value!r}, none of {schema['enum']}")
    for part in schema.get("allOf", []):
        found += problems(value, part, document, place)
    if "anyOf" in schema:
        tries = [problems(value, part, document, place) for part in schema["anyOf"]]
        if all(tries):
            found += tries[0]
    if isinstance(value, dict):
        for name in schema.get("required", []):
            if name not in value:
                found.append(f"{place} lacks {name}")
        properties = schema.get("properties", {})
        for name, member in value.items():
            part = properties.get(name, schema.get("additionalProperties"))
            if isinstance(part, dict):
                found += problems(member, part, document, f"{place}.{name}")
    if isinstance(value, list):
        if len(value) < schema.get("minItems", 0):
            found.append(f"{place} has {len(value)} items")
        for i, item in enumerate(value):
            found += problems(item, schema.get("items", {}), document, f"{place}[{i}]")
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        if value < schema.get("minimum", value) or value > schema.get("maximum", value):
            found.append(f"{place} is {value}")
    return found
