"""The product's images and what builds them: a Dockerfile each, and buildah where there is no Docker.

    python -m images build [NAME...]      archives of the images, made once per content
    python -m images lock                 the lists of pinned packages, made anew

The Dockerfiles are ordinary ones and need nothing of this: docs/images.md.
"""
