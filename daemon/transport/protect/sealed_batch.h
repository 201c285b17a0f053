// What a connection has sealed and its kernel has not taken yet.
#pragma once

#include <sys/uio.h>

#include <array>
#include <cstddef>
#include <memory>
#include <span>

#include "daemon/transport/protect/record_cipher.h"

namespace tensorlane::protect {

// A record is sealed once: its number is its nonce. So the bytes that it becomes are kept until the kernel has taken
// them all. They are sealed in the order in which they go over the wire, a batch at a time: enough for one system call,
// and little enough to be in the cache still when the kernel copies it.
//
// With `encrypt` a batch lies in a buffer of its own. With `authenticate` only headers and tags do; payloads are sent
// from where they lie and must stay there until they are written. One thread.
class SealedBatch {
 public:
  // `cipher` outlives the batch.
  explicit SealedBatch(RecordCipher& cipher);

  // Everything is written: only then may more be added, in as many calls as there is room for.
  bool empty() const { return first_ == parts_used_; }
  // Adds one record. False: there is no room for it, now.
  bool add_header(std::span<const std::byte> header);
  // Adds the records of a payload, or of what is left of one after whole records. False: not all had room.
  bool add_payload(std::span<const std::byte> payload);

  // What is to be written, in order.
  std::span<const iovec> parts() const { return std::span(parts_).subspan(first_, parts_used_ - first_); }
  void written(std::size_t bytes);

 private:
  // Of payload in a batch.
  static constexpr std::size_t kBatchBytes = kRecordBytes;
  // For headers and tags.
  static constexpr std::size_t kBesideBytes = 2048;
  static constexpr std::size_t kParts = 64;

  bool has_room(std::size_t staged_bytes) const {
    return staged_ + staged_bytes + kTagBytes <= stage_bytes_ && parts_used_ + 3 <= kParts;
  }
  void add_part(const std::byte* bytes, std::size_t count);
  void add_staged(std::size_t count);

  RecordCipher& cipher_;
  const std::size_t stage_bytes_;
  const std::unique_ptr<std::byte[]> stage_;  // the kernel backs it page by page as it is used
  std::size_t staged_ = 0;
  std::size_t payload_bytes_ = 0;  // in this batch
  std::array<iovec, kParts> parts_;
  std::size_t first_ = 0, parts_used_ = 0;
};

}  // namespace tensorlane::protect
