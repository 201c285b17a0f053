// What RDMA adds to the handshake: either end makes its queue pairs, tells the other their numbers, and connects them.
// Of a flow of a job that resumes, what resume::FlowExchange says goes behind it.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "daemon/transport/handshake/handshake.h"
#include "daemon/transport/rdma/pair_connector.h"
#include "daemon/transport/rdma/queue_pair.h"
#include "daemon/transport/resume/exchange.h"

namespace tensorlane::rdma {

class PairExchange final : public handshake::Exchange {
 public:
  struct Context {  // outlive the exchange
    Device& device;
    CompletionQueue& queue;
    PairTable& table;
    PairConnector& connector;
  };
  PairExchange(const Context& context, const ports::FlowKey& key, Result<std::shared_ptr<Registrations>> registrations,
               const ports::ClassTag& tag, Retries retries, std::uint8_t queue_pairs,
               std::optional<resume::FlowExchange> flow)
      : context_(context),
        key_(key),
        registrations_(std::move(registrations)),
        tag_(tag),
        retries_(retries),
        queue_pairs_(queue_pairs),
        flow_(std::move(flow)) {}

  // Errors: those of QueuePair::create() and FlowExchange::offer().
  Result<std::vector<std::byte>> offer(std::span<const std::byte> peer) override;
  void bind(const handshake::Mac& secret) override { secret_ = secret; }
  // Errors: those of parse_parameters(), FlowExchange::accept() and PairConnector::connect().
  Status accept(std::span<const std::byte> peer) override;
  // Errors of both: those of Connecting::done().
  Result<bool> may_answer() override { return connecting_->may_answer(); }
  Result<bool> settled() override { return connecting_->done(); }
  Status delay() const override { return connecting_ ? connecting_->delay() : Status(); }

  // Once settled: the pairs.
  QueuePairs take_pairs() { return connecting_->take_pairs(); }
  // Null for jobs that do not resume.
  const resume::FlowExchange* flow() const { return flow_ ? &*flow_ : nullptr; }

 private:
  Context context_;
  const ports::FlowKey key_;
  Result<std::shared_ptr<Registrations>> registrations_;
  const ports::ClassTag tag_;
  const Retries retries_;
  const std::uint8_t queue_pairs_;
  std::optional<resume::FlowExchange> flow_;
  bool connecting_end_ = false;
  Parameters mine_;
  handshake::Mac secret_{};
  QueuePairs pairs_;  // until accept()
  std::unique_ptr<Connecting> connecting_;
};

}  // namespace tensorlane::rdma
