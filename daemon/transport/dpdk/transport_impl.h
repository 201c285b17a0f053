// The insides of the DPDK transport; others use dpdk_transport.h.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <memory>
#include <queue>
#include <utility>
#include <vector>

#include "daemon/ports/transport.h"
#include "daemon/transport/datagram/credits.h"
#include "daemon/transport/dpdk/dpdk_transport.h"
#include "daemon/transport/dpdk/exchange.h"
#include "daemon/transport/dpdk/flow.h"
#include "daemon/transport/dpdk/port/idle_policy.h"
#include "daemon/transport/dpdk/port_report.h"
#include "daemon/transport/handshake/connector.h"
#include "daemon/transport/handshake/flow_table.h"

namespace tensorlane::dpdk {

// How often a busy lane looks for connections and ends.
inline constexpr Duration kLookInterval = milliseconds(1);
// Law 17, where the port announces nothing.
inline constexpr Duration kRestWithoutFlows = milliseconds(10);
// Where interrupts announce packets: a link that goes down has none.
inline constexpr Duration kRestWithInterrupts = milliseconds(100);
// An exchange is over by then.
inline constexpr Duration kSettling = seconds(20);

class DpdkTransport final : public ports::Transport, private handshake::ConnectorEvents {
 public:
  DpdkTransport(const handshake::Protection& protection, std::unique_ptr<PacketPort> port, const DpdkConfig& config,
                ports::FlowOwner& owner);
  Status open(const DpdkConfig& config);

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
  // A flow is due: by its number, since it may have gone by then.
  struct Timer {
    Time at;
    std::uint32_t number;
    bool operator>(const Timer& other) const { return at > other.at; }
  };

  std::unique_ptr<handshake::Exchange> make_exchange(const ports::FlowKey& key);

  // flows.cc
  void on_connected(handshake::Connection& connection) override;
  void on_given_up(const ports::FlowKey& key, Status cause) override;
  void receive(std::size_t& handled);
  void take(const Received& packet, std::size_t& handled);
  void run_timers();
  void ask_host_of(const Flow& flow);
  void look_at_link();
  void touched(Flow& flow);
  void set_timer(Flow& flow);
  void add_timer(Flow& flow, Time at);
  void drop_old_timers();
  void release(std::size_t& handled);
  std::size_t make_packet(Flow& flow, std::span<std::byte> room);
  void write();
  void write_acks();
  std::size_t write_class(ClassShare& share);
  void look_at_descriptors();
  void settle_exchanges();
  void end_flow(Flow& flow, Status cause);
  void publish();

  // Each outlives what is declared behind it.
  const std::unique_ptr<PacketPort> port_;
  const Duration detection_;
  FlowNumbers numbers_;
  datagram::Credits credits_;
  std::vector<Flow*> acks_;
  handshake::ByClass<ClassShare> classes_;
  handshake::Connector connector_;
  handshake::FlowTable<Flow> flows_;
  std::map<ports::FlowKey, Time> settling_;   // exchanges that may wait for the address of the peer, and until when
  std::vector<ports::FlowKey> settling_now_;  // of one look; kept for its memory

  std::priority_queue<Timer, std::vector<Timer>, std::greater<>> timers_;
  // In one poll, so that the lane gets to act on them; and the slot of each.
  std::array<Received, 256> received_;
  std::array<std::uint8_t, 256> slots_;
  std::vector<std::unique_ptr<handshake::Watched>> wake_marks_;  // of the port's interrupts
  IdlePolicy idle_;
  std::size_t packets_ = 0;  // of this poll, both ways; of flows alone
  Duration rest_;            // how long there may be no next one
  Time now_, next_look_;
  bool armed_ = false, interrupts_ = false, linked_ = true;
  PortReport report_;
  PortReport::Strangers strangers_;
  // Of flows that have ended.
  std::uint64_t payloads_dropped_ = 0;
  datagram::AssociationCounters packets_ended_;
};

}  // namespace tensorlane::dpdk
