// What protects one connection, both ways.
#pragma once

#include "daemon/transport/protect/record_cipher.h"
#include "daemon/transport/protect/sealed_batch.h"

namespace tensorlane::protect {

// Goes with the connection, and its keys with it. One thread.
struct Records {
  explicit Records(const RecordSecrets& secrets)
      : sends(secrets.level, secrets.cipher, secrets.send),
        receives(secrets.level, secrets.cipher, secrets.receive),
        batch(sends) {}

  RecordCipher sends, receives;
  SealedBatch batch;
};

}  // namespace tensorlane::protect
