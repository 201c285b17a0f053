// A socket on its way to becoming a flow: the handshake's state machine, for both ends.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "common/base/status.h"
#include "common/base/units.h"
#include "daemon/ports/probe_tokens.h"
#include "daemon/ports/transport.h"
#include "daemon/transport/handshake/handshake.h"
#include "daemon/transport/handshake/socket.h"
#include "daemon/transport/handshake/watched.h"
#include "daemon/transport/protect/records.h"

namespace tensorlane::handshake {

// How long a handshake may take, and how long an attempt to connect.
inline constexpr Duration kHandshakeTimeout = seconds(5);
// How long the accepting end may take for its answer when something is in the way: so much less that the peer, which
// would else know nothing but that no answer came, still hears what. It is shorter where the job's flows must be
// resumed soon: the attempts of Dialer::patience() are. And how often it is asked for after that time.
inline constexpr Duration kAnswerTimeout = seconds(2);
inline constexpr Duration kAnswerInterval = milliseconds(200);

// A connection may also be a probe of `tensorlane verify` (common/probe/exchange.h), which is told from a hello by its
// first four bytes: one with a token that is known gets one answer, or is handed over where it is to be more; any other
// is what it is to the handshake: nothing.
//
// States of the connecting end: connecting -> challenge -> verdict -> (settling, where parameters are exchanged ->)
// done. Of the accepting end: hello -> proof -> (answering -> ready, where parameters are exchanged ->) done. One
// thread.
class Connection final : public Watched {
 public:
  enum class State : std::uint8_t {
    kConnecting,
    kChallenge,
    kVerdict,
    kSettling,
    kHello,
    kProof,
    kAnswering,
    kReady,
    kDone,
    kFailed
  };

  // Accepting end: `socket` comes from the listener of `cls`. `probes`, which may be null, outlives it.
  Connection(Fd socket, ClassId cls, Time deadline, const ExchangeFactory& exchanges,
             ports::ProbeTokens* probes = nullptr);
  // Connecting end: `socket` has a connect() under way to `peer`.
  Connection(Fd socket, const Endpoint& peer, ports::FlowKey key, JobPtr job, Time deadline,
             const ExchangeFactory& exchanges);

  // Goes on as far as it can without blocking. `jobs` is asked by the accepting end only. Ends in kDone or kFailed.
  State advance(const JobTable& jobs);
  // What the clock says, before advance(): a probe's token ends.
  void begin(Time now) { now_ = now; }
  // It was a probe with a token that is known, has its answer, and has failed as a connection (kFailed): that is no
  // news.
  bool probe_answered() const { return probe_answered_; }
  // Or somebody else has its socket now, too, and it has failed as a connection here.
  bool probe_handed_over() const { return probe_handed_over_; }
  // It waits for its exchange, which will say so.
  bool waits_for_exchange() const { return state_ == State::kSettling || state_ == State::kAnswering; }
  // The state is new. The end that waits for the other one's last message has more time than that one, for which the
  // flow is up as soon as it is sent.
  void note_state(Time now) {
    if (state_ == State::kAnswering) answer_by_ = now + answer_timeout();
    if (state_ == State::kReady) deadline_ = now + kHandshakeTimeout;
  }
  // The handshake takes too long: fails it, and tells a peer that has proved itself.
  void time_out();

  State state() const { return state_; }
  bool connecting_end() const { return connecting_end_; }
  // What epoll should wait for: output while connecting, input afterwards.
  bool wants_output() const { return state_ == State::kConnecting; }
  int fd() const { return socket_.get(); }
  ClassId cls() const { return cls_; }
  // The socket, for a flow (kDone: not a byte beyond the handshake has been read) or to be closed in peace (kFailed).
  Fd take_socket() { return std::move(socket_); }
  // What was exchanged (kDone), where the transport exchanges anything.
  std::unique_ptr<Exchange> take_exchange() { return std::move(exchange_); }
  const std::string& remote() const { return remote_; }
  // What has become of the flow that this one takes the place of: how the error goes on after its name.
  std::string replaces() const { return "was replaced by a new one from the same host, at " + remote_; }
  // When it has to be asked whether it is late.
  Time deadline() const { return state_ == State::kAnswering ? std::min(deadline_, answer_by_) : deadline_; }
  // Whether its time is over. Moves deadline() on, where it is not.
  bool late(Time now);
  // The peer has not sent a byte yet.
  bool silent() const { return silent_; }
  // The peer has said something with a right MAC, though perhaps an old one.
  bool proven() const { return proven_; }
  // The peer is the host that it says: a hello may be a copy of an old one, the proof cannot. Then key() is known.
  bool peer_known() const { return peer_known_; }
  // The address of remote(), without its port.
  std::string_view remote_address() const { return std::string_view(remote_).substr(0, remote_.rfind(':')); }
  // This end has sent the peer why it refuses: the connection should live until the peer has read it.
  bool refusal_sent() const { return refusal_sent_; }
  // When peer_known(); of the connecting end, always.
  const ports::FlowKey& key() const { return key_; }
  const JobPtr& job() const { return job_; }
  // When kDone, where records protect the flow. The keys of a connection are asked for once.
  std::unique_ptr<protect::Records> make_records() const;
  // What the keys of a flow that is no stream of records come from; without protection, too.
  protect::RecordSecrets secrets() const;
  // When kFailed. The status names the peer.
  const Status& failure() const { return failure_; }
  Refusal refusal() const { return refusal_; }

 private:
  State step(const JobTable& jobs);
  State on_connected();
  State on_hello(const JobTable& jobs);
  State on_probe();
  State on_challenge();
  State on_proof(const JobTable& jobs);
  State on_verdict();
  State on_settling();
  State on_answering(const JobTable& jobs);
  State on_ready(const JobTable& jobs);
  bool has_ended(const JobTable& jobs) const;
  // That the accepting end has chosen.
  bool usable_cipher() const;
  Duration answer_timeout() const;
  // This end's parameters into mine_. False: refused.
  bool make_offer(Parameters theirs);

  // The messages of this end, with their MACs.
  Challenge challenge(Refusal refusal, const std::string& text);
  Verdict verdict(Refusal refusal, const std::string& text) const;
  bool send_ready(Refusal refusal);
  Verdicted wrong_key() const;

  // Reads the rest of one message. False: not all there yet, or failed. A head that is wrong is enough: other versions'
  // messages may be shorter. `more` bytes follow a message that refuses nothing: they are in inbox_ behind it.
  template <typename Message>
  bool receive(Message& message, std::size_t more = 0);
  bool receive_bytes(std::size_t bytes);
  // One recv(); a descriptor that comes with the bytes is kept where one is expected.
  ssize_t receive_some(std::span<std::byte> into);
  bool peer_waits() const;
  // `descriptor` goes with the bytes unless it is negative.
  template <typename Message>
  bool send(const Message& message, Parameters more = {}, int descriptor = -1);
  template <typename Message>
  std::vector<std::byte> received_behind(std::size_t bytes) const {
    const Parameters behind = std::span(inbox_).subspan(sizeof(Message), bytes);
    return {behind.begin(), behind.end()};
  }

  // Sends the reason to the peer, where it has proved itself and the protocol has a message for it now.
  void tell(const Verdicted& verdict);
  // Tells, and fails with what this end found wrong.
  State refuse(const Verdicted& verdict);
  // The same for an error of the exchange; the peer comes again after kInProgress.
  State refuse(const Status& cause);
  // Fails with what the peer said.
  State refused(const Head& head, const std::string& text);
  State fail(Code code, const std::string& how, const std::string& fix);
  State lost(int error);

  Fd socket_;
  const bool connecting_end_;
  Time deadline_;
  Time answer_by_;  // in kAnswering
  const std::string remote_;
  const ClassId cls_;
  State state_;
  bool silent_ = true;
  std::uint16_t parameter_bytes_ = 0;  // of either end
  bool proven_ = false;                // see proven()
  bool peer_known_ = false;            // key_.peer is the peer: whom we dial, or who has proved itself
  bool refusal_sent_ = false;
  ports::ProbeTokens* probes_ = nullptr;  // of the accepting end
  bool probe_answered_ = false, probe_handed_over_ = false;
  Time now_;
  std::string claim_;  // of one that has not proved itself, for the log

  ports::FlowKey key_;
  JobPtr job_;
  Hello hello_;
  Nonce server_nonce_{};
  protect::Cipher cipher_ = protect::Cipher::kNone;
  std::array<std::byte, sizeof(Challenge) + kMaxParameterBytes + kMacBytes> inbox_{};  // longer than any message
  std::size_t inbox_bytes_ = 0;

  const ExchangeFactory& exchanges_;
  std::unique_ptr<Exchange> exchange_;
  std::vector<std::byte> mine_, theirs_;  // either end's parameters
  Fd descriptor_;                         // that came with the peer's

  Status failure_;
  Refusal refusal_ = Refusal::kNone;
};

}  // namespace tensorlane::handshake
