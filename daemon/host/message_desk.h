// Sends and receives of a job's ranks on this host: the engine's messages, and the ranks' buffers that they are in.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "common/base/token_bucket.h"
#include "daemon/engine/messages/messages.h"
#include "daemon/host/config.h"
#include "daemon/host/job_block.h"
#include "daemon/ports/job.h"

namespace tensorlane::host {

// What a rank posts. `message.buffer` and `message.cls` are the desk's to fill in.
struct MessagePost {
  engine::Message message;
  bool sends = false;
  std::span<std::byte> buffer;   // the desk's until the request is over
  std::span<std::byte> segment;  // that it lies in
};

// A slot of a rank's session, as its job knows it.
struct OpenMessage {
  static constexpr std::uint32_t kNone = 0xffffffff;

  bool open = false, sends = false, abroad = false;
  Rank peer;                                   // or engine::kAnySource
  Time since;                                  // it was posted
  Time told;                                   // that it waits
  std::uint32_t before = kNone, next = kNone;  // of those that are open, in the order of their posting
};

// The thread of the lane that has the job's rail 0; of a job of one host, of its own lane.
class MessageDesk {
 public:
  // A request's name: the rank, by local index, and its slot in the rank's session.
  static std::uint64_t request_of(std::uint32_t local, std::uint32_t slot) {
    return std::uint64_t{local} * protocol::kMessageSlots + slot;
  }
  static std::uint32_t local_of(std::uint64_t request) {
    return static_cast<std::uint32_t>(request / protocol::kMessageSlots);
  }
  static std::uint32_t slot_of(std::uint64_t request) {
    return static_cast<std::uint32_t>(request % protocol::kMessageSlots);
  }
  static engine::MessagesConfig config_of(const ports::JobSpec& spec, const HostConfig& config);
  // What its tables take.
  static Bytes table_bytes(const engine::MessagesConfig& config);

  // Allocates. `limits`: as EngineConfig::limits.
  MessageDesk(const engine::MessagesConfig& config, std::span<const RateLimit> limits);

  // The caller has checked it: ranks of the job, a buffer as long as `count` says, a request that is not under way.
  // What a send to another host exceeds of its class's limit makes it travel in the next class, as a whole (law 11).
  // Returns its class.
  ClassId post(const MessagePost& post, Time now);
  bool stays_here(const engine::Message& message) const {
    return message.source != engine::kAnySource &&
           messages_.host_of(message.source) == messages_.host_of(message.destination);
  }
  // How far a request has come that was posted.
  engine::MessageStage stage_of(std::uint64_t request) const { return messages_.stage_of(ids_[request]); }
  engine::Messages& messages() { return messages_; }
  const engine::Messages& messages() const { return messages_; }
  // The memory of a piece of a request's buffer.
  std::span<std::byte> resolve(const Descriptor& piece) const {
    return buffers_[piece.region].subspan(piece.offset, piece.length);
  }
  // Fills `block`, which is empty, with the next copy between two ranks of this host; there is one. It is under way
  // until block_done().
  void choose_block(JobBlock& block, JobId job, Time now);
  void block_done(const JobBlock& block) { messages_.copied(block.token); }

 private:
  engine::Messages messages_;
  std::vector<std::span<std::byte>> buffers_;  // by request
  std::vector<std::uint32_t> ids_;             // of the machine, by request
  std::vector<TokenBucket> limits_;            // by class
};

}  // namespace tensorlane::host
