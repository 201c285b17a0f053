// The daemon's status comes in pages, because a packet is short and a status is not.
#pragma once

#include <cstddef>
#include <cstring>
#include <span>
#include <string>

#include "common/base/status.h"
#include "common/protocol/session.h"

namespace tensorlane::protocol {

// Joins the pages of one status, for whoever asks: ask for the page at next() until complete().
class StatusText {
 public:
  // The offset of the page to ask for.
  std::uint64_t next() const { return text_.size(); }
  bool complete() const { return complete_; }
  // The JSON text; the object is empty afterwards.
  std::string take() { return std::move(text_); }

  // The body of the daemon's answer to a question for the page at next(). Error: Corrupt.
  Status add(std::span<const std::byte> body) {
    StatusPage page;
    const bool whole = body.size() > sizeof page;
    if (whole) std::memcpy(&page, body.data(), sizeof page);
    if (!whole || page.offset != text_.size() || page.bytes > kMaxStatus ||
        page.bytes < text_.size() + body.size() - sizeof page) {
      return Status(Code::kCorrupt, "a page that does not belong to the daemon's status",
                    std::to_string(body.size()) + " bytes", "install the same release of library and daemon");
    }
    text_.append(reinterpret_cast<const char*>(body.data()) + sizeof page, body.size() - sizeof page);
    complete_ = text_.size() == page.bytes;
    return {};
  }

 private:
  std::string text_;
  bool complete_ = false;
};

}  // namespace tensorlane::protocol
