"""Builds the images of deploy/Dockerfile with podman or docker: python3 -m deploy.images (`make images`).

Standard library only: a machine that builds images needs no venv of ours.
"""
