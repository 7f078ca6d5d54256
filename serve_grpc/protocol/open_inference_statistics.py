"""The statistics of one version in Triton's terms, read from the metrics."""

from collections.abc import Iterable

from jaxport.wire import open_inference_pb2 as pb
from serve_grpc.errors import Code
from serve_grpc.histogram import Counts, HistogramFamily
from serve_grpc.metrics import Metrics


def statistics(metrics: Metrics, model: str, version: int) -> pb.ModelStatistics:
    """success and fail count requests, received to answered; the stages of a run count runs of a batch.

    inference_count: rows. execution_count: runs. batch_stats: by the bucket that ran.
    """
    key = {"model": model, "version": str(version)}
    succeeded, failed = [], []
    for labels, counts in metrics.request_seconds.read():
        if key.items() <= labels.items():
            (succeeded if labels["status"] == Code.OK.name else failed).append(counts)
    runs = metrics.run_totals(model, version)
    total = runs.total
    return pb.ModelStatistics(
        name=model,
        version=str(version),
        last_inference=runs.last_milliseconds,
        inference_count=total.rows,
        execution_count=total.runs,
        inference_stats=pb.InferStatistics(
            success=_requests(succeeded),
            fail=_requests(failed),
            queue=_requests(_of(metrics.queue_seconds, key)),
            compute_input=_stage(total.runs, total.assembling),
            compute_infer=_stage(total.runs, total.on_device),
            compute_output=_stage(total.runs, total.encoding),
        ),
        batch_stats=[
            pb.InferBatchStatistics(
                batch_size=bucket,
                compute_input=_stage(each.runs, each.assembling),
                compute_infer=_stage(each.runs, each.on_device),
                compute_output=_stage(each.runs, each.encoding),
            )
            for bucket, each in runs.by_bucket.items()
        ],
    )


def _of(family: HistogramFamily, key: dict[str, str]) -> list[Counts]:
    return [counts for labels, counts in family.read() if key.items() <= labels.items()]


def _requests(series: Iterable[Counts]) -> pb.StatisticDuration:
    counts = list(series)
    return _stage(sum(each.observations for each in counts), sum(each.sum for each in counts))


def _stage(count: int, seconds: float) -> pb.StatisticDuration:
    return pb.StatisticDuration(count=count, ns=round(seconds * 1e9))
