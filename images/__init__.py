"""The product's images and what builds them: a Dockerfile each, and buildah for want of Docker.

    python -m images build      archives of the images, made once per content
    python -m images lock       the lists of pinned packages, made anew

The Dockerfiles are ordinary ones and need nothing of this: docs/images.md.
"""
