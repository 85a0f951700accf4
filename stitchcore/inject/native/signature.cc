// Ed25519 (RFC 8032) by libsodium, linked statically: a job's Python has none (docs/decisions.md
// 18).
#include <sodium.h>

#include "exports.h"

int stitch_verify_signature(const unsigned char* signature, const unsigned char* message,
                            size_t size, const unsigned char* public_key) {
  if (sodium_init() < 0) return 0;
  return crypto_sign_verify_detached(signature, message, size, public_key) == 0;
}
