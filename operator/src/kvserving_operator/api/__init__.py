"""The public API of the operator: models, rules and the generated schema. Imports no client."""
