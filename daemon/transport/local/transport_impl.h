// The insides of the local transport; others use local_transport.h.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <memory>
#include <vector>

#include "daemon/ports/transport.h"
#include "daemon/transport/handshake/connector.h"
#include "daemon/transport/local/exchange.h"
#include "daemon/transport/local/flow.h"
#include "daemon/transport/local/local_transport.h"

namespace tensorlane::local {

class LocalTransport final : public ports::Transport, private handshake::ConnectorEvents {
 public:
  explicit LocalTransport(ports::FrameSink& sink);
  Status open(const LocalConfig& config);

  void add_job(const ports::JobCredentials& credentials) override { connector_.add_job(credentials); }
  void remove_job(JobId job) override;
  Status connect(const ports::FlowKey& flow, const std::string& address, std::uint16_t data_port,
                 Time deadline) override;
  void close(const ports::FlowKey& flow) override;
  bool writable(const ports::FlowKey& flow) const override;
  void send(const ports::FlowKey& flow, const ports::Outgoing& operation) override;
  Bytes in_flight(ClassId cls) override;
  void flush() override;
  std::size_t poll(Time now) override;
  int wake_fd() const override { return connector_.epoll(); }
  bool arm() override;
  ports::FlowStats stats(const ports::FlowKey& flow) const override;
  ports::FlowProgress progress(const ports::FlowKey& flow) const override;
  ports::TransportCounters counters() const override;

 private:
  struct ClassState {
    ClassShare share;
    std::vector<Flow*> flows;
    std::size_t first = 0;  // whose turn it is
  };
  // on_flow_down that has yet to be called.
  struct Ended {
    ports::FlowKey key;
    Status cause;
  };

  ClassState* find_class(ClassId cls) const;
  void on_connected(handshake::Connection& connection) override;
  void on_given_up(const ports::FlowKey& key, Status cause) override { ended_.push_back({key, std::move(cause)}); }
  void write_flows(std::size_t& handled);
  void read_flows(std::size_t& handled);
  // Whether any was ready.
  bool look_at_descriptors();
  void end_flow(Flow& flow, Status cause);
  void report_ended(std::size_t& handled);
  // The flows of a class, whoever has waited longest first; good until they are gone, which callbacks may do.
  const std::vector<Flow*>& turns(ClassState& state);

  ports::FrameSink& sink_;
  bool payload_crc_ = false, read_peer_memory_ = true;
  handshake::Connector connector_;
  ports::TransportCounters counters_;
  // In the order of service: control, class 0, class 1... Declared before the flows, which refer to them.
  std::array<std::unique_ptr<ClassState>, handshake::kMaxClasses> classes_;
  std::map<ports::FlowKey, std::unique_ptr<Flow>> flows_;
  std::vector<Ended> ended_;
  std::vector<Flow*> turns_;
  Time now_, next_look_;
  bool armed_ = false, queued_ = false;
  std::size_t connected_ = 0;  // flows that came up in this poll
};

}  // namespace tensorlane::local
