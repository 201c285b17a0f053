// What RDMA adds to the handshake: either end makes its queue pairs, tells the other their numbers, and connects them.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "daemon/transport/handshake/handshake.h"
#include "daemon/transport/rdma/queue_pair.h"

namespace tensorlane::rdma {

class PairExchange final : public handshake::Exchange {
 public:
  struct Surroundings {  // outlive the exchange
    Device& device;
    CompletionQueue& queue;
    PairTable& table;
  };
  PairExchange(const Surroundings& around, Result<std::shared_ptr<Registrations>> registrations,
               const ports::ClassTag& tag, std::uint8_t timeout, std::uint8_t queue_pairs)
      : around_(around),
        registrations_(std::move(registrations)),
        tag_(tag),
        timeout_(timeout),
        queue_pairs_(queue_pairs) {}

  // Errors: those of QueuePair::create().
  Result<std::vector<std::byte>> offer(std::span<const std::byte> peer) override;
  // Errors: those of parse_parameters() and QueuePair::connect().
  Status accept(std::span<const std::byte> peer) override;

  // After accept(): the pairs, and where they lead.
  std::vector<std::unique_ptr<QueuePair>> take_pairs() { return std::move(pairs_); }
  const Path& path() const { return path_; }

 private:
  Surroundings around_;
  Result<std::shared_ptr<Registrations>> registrations_;
  const ports::ClassTag tag_;
  const std::uint8_t timeout_, queue_pairs_;
  std::vector<std::unique_ptr<QueuePair>> pairs_;
  Path path_;
};

}  // namespace tensorlane::rdma
