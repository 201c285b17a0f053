// The insides of the local transport; others use local_transport.h.
#pragma once

#include <memory>
#include <vector>

#include "daemon/ports/transport.h"
#include "daemon/transport/handshake/connector.h"
#include "daemon/transport/handshake/flow_table.h"
#include "daemon/transport/local/exchange.h"
#include "daemon/transport/local/flow.h"
#include "daemon/transport/local/local_transport.h"

namespace tensorlane::local {

class LocalTransport final : public ports::Transport, private handshake::ConnectorEvents {
 public:
  explicit LocalTransport(ports::FlowOwner& owner);
  Status open(const LocalConfig& config);

  void add_job(const ports::JobCredentials& credentials) override { connector_.add_job(credentials); }
  void remove_job(JobId job) override;
  Status connect(const ports::FlowKey& flow, const std::string& address, std::uint16_t data_port,
                 Time deadline) override;
  void close(const ports::FlowKey& flow) override;
  Bytes in_flight(ClassId cls) override;
  void flush() override;
  std::size_t poll(Time now) override;
  int wake_fd() const override { return connector_.epoll(); }
  bool arm() override;
  ports::TransportCounters counters() const override;

 private:
  void on_connected(handshake::Connection& connection) override;
  void on_given_up(const ports::FlowKey& key, Status cause) override { flows_.end(key, std::move(cause)); }
  bool queued() const;
  void write_flows(std::size_t& handled);
  void read_flows(std::size_t& handled);
  // Whether any was ready.
  bool look_at_descriptors();
  void end_flow(Flow& flow, Status cause);
  // The flows of a class, whoever has waited longest first; good until they are gone, which callbacks may do.
  const std::vector<Flow*>& turns(ClassShare& share);

  bool read_peer_memory_ = true;
  handshake::Connector connector_;
  ports::TransportCounters counters_;
  handshake::ByClass<ClassShare> classes_;  // declared before the flows, which refer to them
  handshake::FlowTable<Flow> flows_;
  std::vector<Flow*> turns_;
  Time now_, next_look_;
  bool armed_ = false;
};

}  // namespace tensorlane::local
