// The insides of the TCP transport; others use tcp_transport.h.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "daemon/ports/transport.h"
#include "daemon/transport/handshake/connector.h"
#include "daemon/transport/handshake/flow_table.h"
#include "daemon/transport/resume/resumer.h"
#include "daemon/transport/tcp/flow.h"
#include "daemon/transport/tcp/tcp_transport.h"
#include "daemon/transport/tcp/window.h"

namespace tensorlane::tcp {

class TcpTransport final : public ports::Transport, private handshake::ConnectorEvents, private resume::Flows {
 public:
  TcpTransport(const handshake::Protection& protection, ports::FlowOwner& owner);
  Status open(const TcpConfig& config);

  void add_job(const ports::JobCredentials& credentials) override;
  void remove_job(JobId job) override;
  Status connect(const ports::FlowKey& flow, const std::string& address, std::uint16_t data_port,
                 Time deadline) override;
  void close(const ports::FlowKey& flow) override;
  Bytes in_flight(ClassId cls) override;
  void flush() override;
  std::size_t poll(Time now) override;
  bool arm() override;
  int wake_fd() const override { return connector_.epoll(); }
  ports::TransportCounters counters() const override;

 private:
  struct Ready {
    Flow* flow;
    std::uint32_t events;
  };

  // tcp_transport.cc: what the lane asks for.
  void look_again(ClassShare& share, Bytes in_flight);

  // flows.cc: flows that are up, and how they end.
  void write_dirty(std::size_t& handled);
  void write_flow(Flow& flow, std::size_t& handled);
  void serve_flows(std::size_t& handled);
  void on_connected(handshake::Connection& connection) override;
  void on_given_up(const ports::FlowKey& key, Status cause) override;
  void end_flow(resume::Resumable& flow, Status cause) override;
  void begin_flow(handshake::Connection& connection, FlowIdentity identity);
  // On a connection that is new to the flow.
  void serve(Flow& flow);

  // After an error of read() or write(): the flow loses its connection, or ends.
  void fail_flow(Flow& flow, Status cause);
  // Of a connection that takes nothing any more: what had arrived, perhaps a goodbye.
  void read_rest(Flow& flow, std::size_t& handled);
  void lose_connection(resume::Resumable& flow, Status cause) override;
  void resume_flow(Flow& flow, handshake::Connection& connection, const resume::FlowExchange& exchange);
  resume::Resumable* find_flow(const ports::FlowKey& key) override;

  void serve_events(std::size_t& handled);

  Duration detection_{};
  handshake::Connector connector_;
  resume::Resumer resumer_;
  Time now_;
  std::uint64_t poll_ = 0;
  std::uint64_t turn_ = 0;

  handshake::ByClass<ClassShare> classes_;  // declared before the flows, which refer to them
  handshake::FlowTable<Flow> flows_;

  std::vector<Ready> ready_;
  std::vector<Flow*> writing_;
  ReadBuffers buffers_;

  Time window_look_{0};
  Duration window_wait_{0};
  std::uint64_t payloads_dropped_ = 0;  // of flows that have ended
};

}  // namespace tensorlane::tcp
