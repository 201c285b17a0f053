#include "daemon/transport/protect/sealed_batch.h"

#include <algorithm>
#include <cstring>

#include "common/base/assert.h"

namespace tensorlane::protect {

SealedBatch::SealedBatch(RecordCipher& cipher)
    : cipher_(cipher),
      stage_bytes_(kBesideBytes + (cipher.hides() ? kBatchBytes : 0)),
      stage_(new std::byte[stage_bytes_]) {}

bool SealedBatch::add_header(std::span<const std::byte> header) {
  if (!has_room(header.size())) return false;
  std::byte* place = stage_.get() + staged_;
  Tag tag;
  cipher_.seal(header, place, tag);
  if (!cipher_.hides()) std::memcpy(place, header.data(), header.size());
  std::memcpy(place + header.size(), tag.data(), tag.size());
  add_staged(header.size() + tag.size());
  return true;
}

bool SealedBatch::add_payload(std::span<const std::byte> payload) {
  while (!payload.empty()) {
    const auto piece = payload.first(std::min(payload.size(), kRecordBytes));
    const std::size_t hidden = cipher_.hides() ? piece.size() : 0;
    if (payload_bytes_ + piece.size() > kBatchBytes || !has_room(hidden)) return false;
    Tag tag;
    cipher_.seal(piece, stage_.get() + staged_, tag);
    std::memcpy(stage_.get() + staged_ + hidden, tag.data(), tag.size());
    if (hidden == 0) add_part(piece.data(), piece.size());
    add_staged(hidden + tag.size());
    payload_bytes_ += piece.size();
    payload = payload.subspan(piece.size());
  }
  return true;
}

void SealedBatch::add_staged(std::size_t count) {
  const std::byte* bytes = stage_.get() + staged_;
  staged_ += count;
  if (parts_used_ > first_) {
    iovec& last = parts_[parts_used_ - 1];
    if (static_cast<const std::byte*>(last.iov_base) + last.iov_len == bytes) {
      last.iov_len += count;
      return;
    }
  }
  add_part(bytes, count);
}

void SealedBatch::add_part(const std::byte* bytes, std::size_t count) {
  parts_[parts_used_++] = {const_cast<std::byte*>(bytes), count};
}

void SealedBatch::written(std::size_t bytes) {
  while (bytes > 0) {
    TL_ASSERT(!empty());
    iovec& part = parts_[first_];
    const std::size_t taken = std::min(bytes, part.iov_len);
    part.iov_base = static_cast<std::byte*>(part.iov_base) + taken;
    part.iov_len -= taken;
    bytes -= taken;
    if (part.iov_len == 0) ++first_;
  }
  if (empty()) first_ = parts_used_ = staged_ = payload_bytes_ = 0;
}

}  // namespace tensorlane::protect
