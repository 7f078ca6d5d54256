"""The launcher: the stages as Kubernetes Jobs, from the manifests of deploy/, through the official client.

access: which cluster, and as whom. api: one request, and what its failure means. manifests, changes: what is to be there.
apply: making it so. watching, log_stream, follow: what becomes of it. outcome: how a Job fares, and the exit code of that.
"""
