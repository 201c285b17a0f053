// The insides of the RDMA transport; others use rdma_transport.h.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "daemon/ports/transport.h"
#include "daemon/transport/handshake/connector.h"
#include "daemon/transport/handshake/flow_table.h"
#include "daemon/transport/rdma/exchange.h"
#include "daemon/transport/rdma/flow.h"
#include "daemon/transport/rdma/rdma_transport.h"
#include "daemon/transport/resume/resumer.h"

namespace tensorlane::rdma {

// A flow that ends has so long to give back what is posted; then its queue pairs are destroyed all the same, which is
// as safe.
inline constexpr Duration kDrainTimeout = seconds(1);

struct DestroyChannel {
  void operator()(ibv_comp_channel* channel) const { ibv_destroy_comp_channel(channel); }
};

class RdmaTransport final : public ports::Transport,
                            private handshake::ConnectorEvents,
                            private resume::Flows,
                            private PairEvents {
 public:
  explicit RdmaTransport(ports::FlowOwner& owner);
  Status open(const RdmaConfig& config);

  void add_job(const ports::JobCredentials& credentials) override;
  void remove_job(JobId job) override;
  Status connect(const ports::FlowKey& flow, const std::string& address, std::uint16_t data_port,
                 Time deadline) override;
  void close(const ports::FlowKey& flow) override;
  Status map(JobId job, std::span<std::byte> bytes) override;
  Status map(JobId job, const ports::DeviceMemory& memory) override;
  void unmap(JobId job) override;
  void unmap(JobId job, std::span<std::byte> bytes) override;
  Bytes in_flight(ClassId cls) override;
  void flush() override;
  std::size_t poll(Time now) override;
  int wake_fd() const override { return connector_.epoll(); }
  bool arm() override;
  ports::TransportCounters counters() const override;

 private:
  // A flow that drains: on_flow_down follows.
  struct Closing {
    std::unique_ptr<Flow> flow;
    Status cause;
    Time deadline;
  };

  Result<std::shared_ptr<Registrations>> registrations(JobId job);
  std::shared_ptr<PlaceTable> places(JobId job, HostIndex peer);
  std::unique_ptr<handshake::Exchange> make_exchange(const ports::FlowKey& key, const handshake::Job& job);
  Status open_connector(ConnectBy by);

  // flows.cc
  void on_connected(handshake::Connection& connection) override;
  // On a connection that is new to the flow.
  void serve(Flow& flow);
  void on_given_up(const ports::FlowKey& key, Status cause) override;
  void on_moved(const ports::FlowKey& flow) override;
  void on_request_refused(const Status& cause) override;
  void write_dirty();
  // After an error of its pairs, of its connection or of what came: the flow loses its connection, or ends.
  void fail_flow(Flow& flow, Status cause, bool deliver);
  void end_flow(Flow& flow, Status cause, bool deliver);
  void finish_closing(bool all);
  void serve_completions(ClassShare& share, std::size_t& handled);
  void serve_completion(const ibv_wc& completion, std::size_t& handled);
  void settle(Flow& flow, std::size_t& handled);
  Status explain(const ibv_wc& completion);
  void look_at_descriptors();
  void serve_channel();
  void serve_device_events();
  void fail_flows(const Status& cause, const ibv_qp* of);

  // Flows that have lost their connection.
  resume::Resumable* find_flow(const ports::FlowKey& key) override;
  void lose_connection(resume::Resumable& flow, Status cause) override;
  void end_flow(resume::Resumable& flow, Status cause) override;
  void finish_draining();
  void resume_flow(Flow& flow, handshake::Connection& connection, PairExchange& exchange);

  // Each outlives what is declared behind it.
  std::unique_ptr<Device> device_;
  std::unique_ptr<ibv_comp_channel, DestroyChannel> channel_;
  handshake::Watched channel_mark_{handshake::Watched::Kind::kDevice}, device_mark_{handshake::Watched::Kind::kDevice},
      connector_mark_{handshake::Watched::Kind::kDevice};
  PairTable pairs_;
  ports::TransportCounters counters_;
  std::map<JobId, std::shared_ptr<Registrations>> registrations_;
  std::map<std::pair<JobId, HostIndex>, std::weak_ptr<PlaceTable>> places_;
  handshake::ByClass<ClassShare> classes_;
  // Holds queue pairs until no call is about them, however their handshake has ended.
  std::unique_ptr<PairConnector> pair_connector_;
  handshake::Connector connector_;
  resume::Resumer resumer_;
  handshake::FlowTable<Flow> flows_;
  std::vector<Flow*> draining_;  // have lost their connection and are to settle, however long that takes
  std::vector<Closing> closing_;
  std::vector<Flow*> writing_;

  std::uint8_t queue_pairs_ = 1;
  Retries retries_;
  Duration detection_{};
  Time now_, next_look_;
  bool armed_ = false;
  std::optional<Time> down_since_;
};

}  // namespace tensorlane::rdma
