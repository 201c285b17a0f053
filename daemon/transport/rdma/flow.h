// A flow that is up: frames in both directions over one or more queue pairs.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "common/base/bounded_queue.h"
#include "common/base/status.h"
#include "daemon/ports/transport.h"
#include "daemon/transport/handshake/handshake.h"
#include "daemon/transport/handshake/socket.h"
#include "daemon/transport/handshake/watched.h"
#include "daemon/transport/rdma/place_table.h"
#include "daemon/transport/rdma/queue_pair.h"

namespace tensorlane::rdma {

// Operations that a flow queues before it stops being writable.
inline constexpr std::size_t kQueueOperations = 64;

// What a flow shares with others. Outlives the flow, except the job's parts, which it holds.
struct FlowSurroundings {
  std::shared_ptr<Registrations> registrations;
  std::shared_ptr<PlaceTable> places;  // of the peer
  std::uint64_t& in_flight;            // of the class
  ports::TransportCounters& counters;
};

// Its queue pairs take turns, one operation each, in the same order at both ends; so frames come out in the order in
// which they went in although queue pairs may overtake each other. The handshake's connection stays open: it ends when
// either end does. One thread, the lane's. Callbacks may close the flow that they come from (stop() is then called):
// nothing of it is delivered after that.
class Flow final : public handshake::Watched {
 public:
  Flow(ports::FlowKey key, handshake::JobPtr job, handshake::Fd socket, std::vector<std::unique_ptr<QueuePair>> pairs,
       const FlowSurroundings& around);
  ~Flow() override;

  const ports::FlowKey& key() const { return key_; }
  const handshake::Job& job() const { return *job_; }
  int fd() const { return socket_.get(); }

  bool writable() const { return !stopped_ && !ending_ && queued_ < kQueueOperations; }
  // Takes an operation; only when writable(). `payload_crc`: compute it.
  void enqueue(const ports::Outgoing& operation, bool payload_crc);
  // Posts queued operations while credits and slots last. An error ends the flow.
  Status write();
  // Messages of `pair` up to this position are acknowledged. Adds finished operations to `handled`.
  void sent(QueuePair& pair, std::uint32_t position, ports::FrameSink& sink, std::size_t& handled);
  // Delivers what has arrived and whose turn it is. Adds finished frames to `handled`. An error ends the flow.
  Status deliver(ports::FrameSink& sink, std::size_t& handled);

  // What the handshake's connection says: ok while it lives.
  Status look_at_connection();

  // The end begins: the pairs take nothing any more. What has arrived before may still be delivered.
  void begin_end();
  // Neither sends nor delivers from now on, and forgets what is queued.
  void stop();
  bool stopped() const { return stopped_; }
  // No write can land any more, and nothing is read.
  bool drained() const;
  void destroy_pairs() { pairs_.clear(); }
  bool has(const ibv_qp* pair) const;
  // What went wrong with one of its pairs, naming this flow; else ok.
  Status failure() const;
  handshake::Fd take_socket() { return std::move(socket_); }

  ports::FlowStats stats() const;
  // An error that names this flow: "connection to host 3 (10.0.0.4:7111, class 1) was reset".
  Status broken(Code code, const std::string& how, const std::string& fix = {}) const;

  // The transport's notes.
  bool dirty = false;  // is in the list of flows to write

 private:
  struct Queued {
    std::array<std::byte, protocol::kFrameHeaderBytes> header;
    std::span<const std::byte> payload;
    std::uint32_t payload_key = 0;  // of the payload's registration; 0: it has none
    std::uint32_t grant = 0;
    std::optional<Place> target;  // the payload is written there
    std::vector<Place> places;    // of the grant that the frame gives; keeps its memory
    std::uint64_t token = 0;
    std::size_t posted = 0;  // bytes of the payload
    bool begun = false;
  };
  Queued& queued(std::size_t position) { return queue_[(queue_head_ + position) % kQueueOperations]; }
  void fill_places(Queued& slot, const ports::Outgoing& operation) const;
  void push_message(QueuePair& pair, Queued& operation);
  std::size_t push_frame(QueuePair& pair, Queued& operation);

  Status take_frame(const Message& message, ports::FrameSink& sink, std::size_t& handled);
  Status take_payload(std::span<const std::byte> bytes, ports::FrameSink& sink, std::size_t& handled);
  Status check_landed(std::uint64_t landed_at);
  Status frame_complete(ports::FrameSink& sink, std::size_t& handled);

  const ports::FlowKey key_;
  const handshake::JobPtr job_;
  handshake::Fd socket_;
  std::vector<std::unique_ptr<QueuePair>> pairs_;
  FlowSurroundings around_;
  const std::string local_, remote_;
  bool stopped_ = false, ending_ = false;

  // Sending: a ring of operations, the first of which may be posted in part.
  std::array<Queued, kQueueOperations> queue_;
  std::size_t queue_head_ = 0, queued_ = 0;
  std::size_t send_turn_ = 0;
  std::vector<Ring<std::uint64_t>> finished_;  // by pair: tokens of acknowledged operations whose turn has not come
  std::size_t sent_turn_ = 0;
  std::uint64_t in_flight_ = 0;  // of this flow

  // Receiving.
  std::size_t receive_turn_ = 0;
  protocol::FrameHeader header_;
  std::span<std::byte> landing_;
  std::size_t payload_left_ = 0;
  bool in_frame_ = false, dropping_ = false;
  std::uint32_t crc_ = 0;

  ports::FlowStats counts_;
};

}  // namespace tensorlane::rdma
