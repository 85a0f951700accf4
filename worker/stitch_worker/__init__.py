"""The Celery worker around stitchcore's pipeline, and the signer of what workers make."""
