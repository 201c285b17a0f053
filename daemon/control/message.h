// What daemons say to each other on the control plane, and how it looks on the wire: one CBOR array per message,
//   [version, type, job, epoch, number, body], body an array whose items depend on the type.
// Positions instead of keys, because a registration carries thousands of tensors in one message.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "common/base/status.h"
#include "common/base/units.h"
#include "common/json/json.h"

namespace tensorlane::control {

inline constexpr std::uint8_t kWireVersion = 10;
inline constexpr std::size_t kMaxWireMessage = std::size_t{1} << 20;  // bytes; what is longer is dropped and counted

// F: follower to leader, L: leader to follower, A: any host to all others of the job.
enum class MessageType : std::uint8_t {
  kJoin = 1,         // F: user, MASTER_PORT, job name, nonce. Repeated until the roster comes
  kChallenge = 2,    // L: the follower's nonce, the leader's nonce
  kProof = 3,        // F: its nonce, HMAC, claims of its ranks
  kRefuse = 4,       // L: the follower's nonce, status. The follower does not take part
  kRoster = 5,       // L: the follower's nonce, HMAC, detection time, world size, hosts with their ranks, pair keys
  kConnected = 6,    // F: the lane of this host has the job
  kGo = 7,           // L: all hosts have the job: let the ranks in
  kHeartbeat = 8,    // A: how far the flows from the receiver have come, and what the ports here carry (job_progress.h)
  kArrived = 9,      // F: group, the ranks of this host that have registered it so far
  kGroup = 10,       // F: group, lowest rank, tensors, status (ok, or how the ranks of this host disagree)
  kPlan = 11,        // L: group, version, hash, ordering, concurrent, the tensors to add
  kPlanned = 12,     // F: version, hash: the plan is in force here
  kActivate = 13,    // L: version, group: in force everywhere; ranks may submit
  kRejected = 14,    // L: group, status: this registration fails at every rank
  kLate = 15,        // A: rank, what it is late with, nanoseconds
  kLeft = 16,        // A: rank that has left in peace
  kAbort = 17,       // A: the cause
  kThresholds = 18,  // L: the thresholds between classes that hosts use from now on
  kStandstill = 19,  // A: a flow of this host stands still, is starved, or moves again (job_progress.h)
  kOverdue = 20,     // F: group, a rank of this host whose program waits no longer for its registration
  kAwaited = 21,     // A: tensor, sequence, nanoseconds that the sender has waited for the receiver's part in it
  kUnregister = 22,  // F: group, a rank that unregisters it, operations that it has completed, how long it waits (ns)
  kVacate = 23,      // L: group, version, hash: the plan without the group
  kStays = 24,       // L: group, ranks, status: these ranks have unregistered it in vain
  kFlows = 25,       // A: make the flows to the sender: it has messages for ranks of the receiver, or waits for some
  // Of no job; instead of one they carry the number of the question, which is its asker's (questions.h).
  kAsk = 26,     // user, kind, arguments, how long the asker waits (ns)
  kAnswer = 27,  // part, parts, status, bytes of the answer
};
inline constexpr MessageType kLastMessageType = MessageType::kAnswer;

// Messages that carry their number in the sequence from this sender: all that cannot be repeated. Heartbeats carry the
// number of the last one, so that a lost message is noticed within a heartbeat and never leaves a job waiting.
constexpr bool is_sequenced(MessageType type) {
  return type >= MessageType::kConnected && type != MessageType::kHeartbeat && type != MessageType::kAbort &&
         type < MessageType::kAsk;
}

struct Message {
  MessageType type{};
  JobId job;
  Epoch epoch;               // 0 only in kJoin: the leader has not told it yet
  std::uint64_t number = 0;  // see is_sequenced()
  nlohmann::json body = nlohmann::json::array();
};

// The bytes of a message. No errors; the caller keeps within kMaxWireMessage.
std::vector<std::uint8_t> encode(const Message& message);

// What the first bytes of a message say, read without its body: enough to drop one that nobody waits for, which a
// million items in its body would make expensive.
struct Envelope {
  std::uint64_t version = 0, type = 0;
  JobId job;
};
// Nothing where these are not three numbers at the begin of an array. Safe for any bytes; what follows is not looked
// at.
std::optional<Envelope> read_envelope(std::span<const std::byte> bytes);

// Reads and checks the envelope; the body's items are for the reader of that type. Safe for any bytes: nesting is
// bounded, nothing is allocated beyond the input's size. Errors: kCorrupt, kVersionMismatch.
Result<Message> decode(std::span<const std::byte> bytes);

// Reads the items of an array in order. After the first item that is absent or of another type every read gives zero
// and ok() is false.
class ItemReader {
 public:
  explicit ItemReader(const nlohmann::json& array);
  std::uint64_t number(std::uint64_t most);  // an unsigned integer of at most `most`
  std::uint32_t u32() { return static_cast<std::uint32_t>(number(0xffffffffu)); }
  double real();     // finite
  float fraction();  // from 0 to 1
  bool boolean();
  std::string text(std::size_t most);        // of at most `most` bytes, all printable (common/base/text.h)
  std::string shown_text(std::size_t most);  // of at most `most` bytes; what is not printable reads as '?'
  std::string raw_text(std::size_t most);    // the same, of any characters
  // A byte string of exactly `size` bytes, or of at most `most`, which stays the array's; empty on error.
  std::span<const std::uint8_t> bytes(std::size_t size);
  std::span<const std::uint8_t> bytes_up_to(std::size_t most);
  const nlohmann::json& array();  // an empty one on error
  bool ok() const { return ok_; }
  bool done() const { return ok_ && next_ == array_->size(); }  // and nothing is left over

 private:
  const nlohmann::json* take();
  const nlohmann::json* array_;
  std::size_t next_ = 0;
  bool ok_ = true;
};

// A Status as an array of four items and back; a malformed one reads as kInternal.
nlohmann::json status_to_json(const Status& status);
Status status_from_json(const nlohmann::json& array);

}  // namespace tensorlane::control
