"""A stand-in for the provider hashicorp/google, where no provider registry can be reached.

    bindings.py   reads the provider's schema out of a package of language bindings
    provider.py   serves that schema to terraform, as a plugin; runs in a venv of its own
    mirror.py     lays both where `terraform init` looks for providers

It knows every resource, block, attribute, type and required flag, and what the provider's documentation says of each
attribute. It does not know which values the API takes, what conflicts with what, or anything that exists.
"""
