// One reliable-connected queue pair: its message buffers, its credits, and what is posted on it.
#pragma once

#include <infiniband/verbs.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "common/base/status.h"
#include "common/base/units.h"
#include "daemon/ports/transport.h"
#include "daemon/transport/rdma/completion_queue.h"
#include "daemon/transport/rdma/device.h"
#include "daemon/transport/rdma/message.h"
#include "daemon/transport/rdma/registrations.h"

namespace tensorlane::rdma {

class Flow;
class QueuePair;

// Messages that may be posted and not completed: those under credits, and credits of our own.
inline constexpr std::uint32_t kSendSlots = kCredits + 2;
inline constexpr std::uint32_t kReceiveSlots = kCredits + kSpareReceives;

// What a work request's id says.
struct WorkId {
  bool receive = false;
  std::uint32_t pair = 0;      // 31 bits: position in the PairTable and its generation
  std::uint32_t position = 0;  // of the slot

  std::uint64_t pack() const { return std::uint64_t{position} << 32 | std::uint64_t{pair} << 1 | (receive ? 1 : 0); }
  static WorkId unpack(std::uint64_t id) {
    return {(id & 1) != 0, static_cast<std::uint32_t>(id) >> 1, static_cast<std::uint32_t>(id >> 32)};
  }
};

// Finds the queue pair of a completion. Completions of one that has gone may still come: they find nothing.
class PairTable {
 public:
  std::uint32_t add(QueuePair& pair);
  void remove(std::uint32_t id);
  QueuePair* find(std::uint32_t id) const;

 private:
  static constexpr std::uint32_t kIndexBits = 16;
  struct Slot {
    QueuePair* pair = nullptr;
    std::uint32_t generation = 0;
  };
  std::vector<Slot> slots_;
  std::vector<std::uint32_t> free_;
};

// How packets travel.
struct Path {
  GidBytes peer{};
  ibv_mtu mtu = IBV_MTU_1024;
  ports::ClassTag tag;
  Retries retries;

  // DSCP and ECT(0): the GRH's traffic class and IP's TOS.
  std::uint8_t traffic_class() const { return static_cast<std::uint8_t>(tag.dscp << 2 | 2); }
};

// What a queue pair is told of the one that it is connected to.
struct Link {
  ibv_ah_attr address{};                            // where it is, and the marks of packets to it
  std::uint32_t peer = 0;                           // its number
  std::uint32_t receive_first = 0, send_first = 0;  // numbers of the first packets
  ibv_mtu mtu = IBV_MTU_1024;
  Retries retries;
};

// One thread, but for connect(). Destroying it ends every access to its buffers and to memory that was posted.
class QueuePair {
 public:
  // Makes it with all receives posted, in a state that takes nothing yet. `table`, `queue` and `device` outlive it.
  // Errors: kResourceExhausted.
  static Result<std::unique_ptr<QueuePair>> create(Device& device, std::shared_ptr<Registrations> registrations,
                                                   CompletionQueue& queue, PairTable& table);
  ~QueuePair();
  QueuePair(const QueuePair&) = delete;
  QueuePair& operator=(const QueuePair&) = delete;

  Parameters::Pair parameters() const { return {qp_->qp_num, first_packet_}; }
  // Ready to receive and to send. Blocks for up to a second while the kernel asks the network where the peer's GID is.
  // Any thread, while the owner does not destroy it; connected() follows on the owner's. Errors: kInProgress (nobody
  // has answered for the GID: worth another try), kUnavailable (this queue pair has failed: others may do), kMismatch
  // (no route to the GID...), kInternal.
  Status connect(const Link& link) const;
  // After connect().
  void connected(const Link& link) { path_mtu_ = mtu_bytes(link.mtu); }
  // Keeps what must live as long as the connection: what rdma_cm knows of it.
  void keep(std::shared_ptr<void> connection) { connection_ = std::move(connection); }
  // Payload bytes of its largest packet, once it is connected; 0 before.
  std::uint32_t path_mtu() const { return path_mtu_; }
  // The traffic class that the device says it uses; -1 when it says nothing.
  int traffic_class() const;

  // ---- sending ----
  // Whether push() would take a message that uses a credit.
  bool room() const { return credits_ > 0 && head_ - tail_ < kCredits; }
  // Whether half of the credits have gathered here and push_credit() would take them.
  bool credit_due() const { return owed_ >= kCredits / 2 && head_ - tail_ < kSendSlots; }
  // Where the next message is built.
  std::span<std::byte> slot() { return std::span(sends_).subspan(head_ % kSendSlots * kMessageBytes, kMessageBytes); }
  // Credits that the message built now takes along.
  std::uint16_t take_owed();
  struct Gather {  // registered memory that follows what is in the slot
    std::span<const std::byte> bytes;
    std::uint32_t key = 0;
  };
  struct Write {  // goes in front of the message
    std::span<const std::byte> from;
    std::uint32_t from_key = 0;
    Place to;
  };
  struct Note {               // comes back when the message is acknowledged
    std::uint32_t bytes = 0;  // of its operation that it brings to their end
    bool last = false;        // of its operation
  };
  void push(std::size_t slot_bytes, const Gather& gather, const Write* write, std::uint32_t immediate,
            const Note& note);
  void push_credit();
  // Hands everything pushed to the device: one doorbell.
  Status submit();
  // The message at this position and all before it are acknowledged (or flushed): their notes, oldest first.
  std::optional<Note> completed(std::uint32_t position);

  // ---- receiving ----
  // A receive has completed with so many bytes: counts its credits and keeps it for front(). Errors: kCorrupt.
  Status arrived(std::uint32_t position, std::size_t bytes);
  void receive_flushed() { --posted_receives_; }
  // The oldest message that has arrived, frames only (credits have been counted); null when there is none.
  const Message* front() const;
  // Done with it: the slot is posted again.
  void pop();

  // ---- the end ----
  // Takes nothing from now on; what is posted comes back as errors.
  void fail();
  // Nothing is posted any more.
  bool drained() const { return head_ == tail_ && posted_receives_ == 0; }

  bool failed() const { return failed_; }
  // A message of the peer has come.
  bool heard() const { return heard_; }
  const ibv_qp* get() const { return qp_; }

  Flow* flow = nullptr;  // once it is up
  Status failure;        // of a completion, or of bytes that came

 private:
  QueuePair(Device& device, std::shared_ptr<Registrations> registrations, CompletionQueue& queue, PairTable& table);
  Status open();
  bool in_error() const;
  Status post_receive(std::uint32_t position);
  ibv_send_wr& next_request();
  void request_send(std::size_t slot_bytes, const Gather& gather, const Write* write, std::uint32_t immediate,
                    const Note& note);

  Device& device_;
  const std::shared_ptr<Registrations> registrations_;
  std::shared_ptr<void> connection_;  // goes after the queue pair
  CompletionQueue& queue_;
  PairTable& table_;
  std::uint32_t id_ = 0;
  bool reserved_ = false, failed_ = false, heard_ = false;
  ibv_qp* qp_ = nullptr;
  std::uint32_t first_packet_ = 0;
  std::uint32_t max_inline_ = 0;
  std::uint32_t path_mtu_ = 0;

  std::vector<std::byte> sends_, receives_;
  MemoryRegion send_region_, receive_region_;
  std::uint32_t head_ = 0, tail_ = 0;  // messages pushed; acknowledged
  std::uint32_t credits_ = kCredits;   // that the peer has given
  std::array<Note, kSendSlots> notes_;

  // Pushed and not yet submitted.
  std::array<ibv_send_wr, 2 * kSendSlots> requests_;
  std::array<std::array<ibv_sge, 2>, 2 * kSendSlots> pieces_;
  std::size_t pending_ = 0;

  struct Arrived {
    std::uint32_t position;
    Message message;
  };
  std::array<Arrived, kReceiveSlots> arrived_;
  std::uint32_t arrived_head_ = 0, arrived_tail_ = 0;
  std::uint32_t posted_receives_ = 0;
  std::uint32_t owed_ = 0;  // receives posted again that the peer does not know of
};

}  // namespace tensorlane::rdma
