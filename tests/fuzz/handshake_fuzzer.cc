// Both ends of a handshake against a peer that holds the pair's key and says what the input makes of it. An end that is
// done has seen proof of the key for exactly what was said; a peer that keeps to the protocol is never refused; what
// fails is explained; and the accepting end answers nothing to a hello without a right MAC, but its version.
//
// Input: which end is tested and whether parameters are exchanged, then the damage to each message of the peer, in
// order (see Peer::damaged()).
#include <sodium.h>
#include <sys/socket.h>

#include <array>
#include <cstring>
#include <optional>
#include <vector>

#include "daemon/transport/handshake/connection.h"
#include "input.h"

namespace tensorlane::fuzz {
namespace {

using namespace handshake;
using State = Connection::State;

constexpr JobId kJob{0x1122334455667788};
constexpr Epoch kEpoch{7};
constexpr ClassId kClass{1};
constexpr std::size_t kParameterBytes = 48;
const std::array<std::byte, kParameterBytes> kOffer{std::byte{1}, std::byte{2}, std::byte{3}};

JobPtr make_job(HostIndex self) {
  ports::PairKeys keys(2);
  for (ports::PairKey& key : keys) key.fill(std::byte{0x5a});
  return std::make_shared<const Job>(ports::JobCredentials{kJob, kEpoch, self, keys});
}

class RecordingExchange final : public Exchange {
 public:
  explicit RecordingExchange(std::optional<std::vector<std::byte>>& accepted) : accepted_(accepted) {}
  Result<std::vector<std::byte>> offer(std::span<const std::byte> /*peer*/) override {
    return std::vector(kOffer.begin(), kOffer.end());
  }
  Status accept(std::span<const std::byte> peer) override {
    if (peer[0] == std::byte{0xee}) return Status(Code::kMismatch, "parameters that do not fit");
    accepted_.emplace(peer.begin(), peer.end());
    return {};
  }

 private:
  std::optional<std::vector<std::byte>>& accepted_;
};

// The other end of the socket.
class Peer {
 public:
  Peer(Fd socket, Input& input) : socket_(std::move(socket)), input_(input) {}

  // Sends the message, or what the input makes of it.
  void say(std::span<const std::byte> good) {
    const std::vector<std::byte> bytes = damaged(good);
    ::send(socket_.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL);
    said_.insert(said_.end(), bytes.begin(), bytes.end());
  }
  // What the tested end finds at this place of all that was sent.
  template <typename Message>
  Message said(std::size_t at) const {
    Message message{};
    const auto bytes = said_bytes(at, sizeof message);
    std::memcpy(&message, bytes.data(), bytes.size());
    return message;
  }
  std::vector<std::byte> said_bytes(std::size_t at, std::size_t size) const {
    std::vector<std::byte> bytes(size);
    if (at < said_.size())
      std::copy_n(said_.begin() + static_cast<std::ptrdiff_t>(at), std::min(size, said_.size() - at), bytes.begin());
    return bytes;
  }
  // What the tested end has said: zeros where it said nothing.
  template <typename Message>
  Message hear() {
    Message message{};
    hear_bytes(std::as_writable_bytes(std::span(&message, 1)));
    return message;
  }
  bool heard_nothing() {
    std::byte byte;
    return ::recv(socket_.get(), &byte, 1, MSG_DONTWAIT | MSG_PEEK) <= 0;
  }
  bool hear_bytes(std::span<std::byte> bytes) {
    return ::recv(socket_.get(), bytes.data(), bytes.size(), MSG_DONTWAIT) == static_cast<ssize_t>(bytes.size());
  }

  // A change to a message before its MAC is computed: the peer holds the key and lies.
  template <typename Message>
  void lie(Message& message) {
    const auto changes = input_.take<std::uint8_t>();
    for (int i = 0; i < changes % 4; ++i) change(std::as_writable_bytes(std::span(&message, 1)));
    honest_ &= changes % 4 == 0;
  }
  bool honest() const { return honest_; }

 private:
  void change(std::span<std::byte> bytes) {
    const auto at = input_.take<std::uint8_t>();
    bytes[at % bytes.size()] = input_.take<std::byte>();
  }

  std::vector<std::byte> damaged(std::span<const std::byte> good) {
    std::vector<std::byte> bytes(good.begin(), good.end());
    const auto kind = input_.take<std::uint8_t>();
    honest_ &= kind % 8 < 4;
    switch (kind % 8) {
      case 4:
        change(bytes);
        break;
      case 5:
        bytes.resize(input_.take<std::uint8_t>() % (bytes.size() + 1));
        break;
      case 6: {
        const auto noise = input_.bytes(input_.take<std::uint8_t>());
        bytes.assign(noise.begin(), noise.end());
        break;
      }
      case 7:
        ::shutdown(socket_.get(), SHUT_WR);
        bytes.clear();
        break;
      default:
        break;
    }
    return bytes;
  }

  Fd socket_;
  Input& input_;
  std::vector<std::byte> said_;
  bool honest_ = true;
};

struct Scene {
  explicit Scene(Input& input) {
    const auto flags = input.take<std::uint8_t>();
    connecting = (flags & 1) != 0;
    if (flags & 2) {
      exchanges.bytes = kParameterBytes;
      exchanges.make = [this](const ports::FlowKey& key, const JobPtr&) {
        TL_ASSERT(key.job == kJob && key.cls == kClass);
        return std::make_unique<RecordingExchange>(accepted);
      };
    }
    if (flags & 4) {
      exchanges.protection = {DataProtection::kEncrypt,
                              static_cast<protect::Ciphers>(protect::Cipher::kChaCha20Poly1305)};
    }
    int ends[2];
    TL_ASSERT(::socketpair(AF_UNIX, SOCK_STREAM, 0, ends) == 0);
    tested = Fd(ends[0]);
    peer.emplace(Fd(ends[1]), input);
  }
  std::size_t bytes() const { return exchanges.bytes; }
  std::span<const std::byte> offer() const { return std::span(kOffer).first(bytes()); }

  bool connecting = false;
  ExchangeFactory exchanges;
  std::optional<std::vector<std::byte>> accepted;  // by the tested end
  Fd tested;
  std::optional<Peer> peer;
};

void check_end(Connection& connection, const Scene& scene, bool proven) {
  TL_ASSERT(connection.state() != State::kDone || proven);
  TL_ASSERT(connection.state() == State::kDone || !scene.peer->honest());
  if (connection.state() == State::kDone) {
    const bool protects = scene.exchanges.protection.level != DataProtection::kNone;
    TL_ASSERT((connection.make_records() != nullptr) == protects);
    TL_ASSERT(connection.key() == (ports::FlowKey{kJob, connection.key().peer, kClass}) && connection.job());
    TL_ASSERT(scene.accepted.has_value() == (scene.bytes() > 0) && connection.failure().ok());
    return;
  }
  if (connection.state() != State::kFailed) connection.time_out();
  TL_ASSERT(connection.state() == State::kFailed);
  expect_explained(connection.failure());
}

// Head of a message that goes on.
bool goes_on(const Head& head) {
  return check_head(head).ok() && head.refusal == Refusal::kNone;
}

void test_accepting_end(Scene& scene) {
  JobTable jobs;
  jobs.add(make_job(HostIndex(1)));
  Peer& peer = *scene.peer;
  Connection connection(std::move(scene.tested), kClass, Time(0), scene.exchanges);
  const JobPtr own = make_job(HostIndex(0));
  Hello hello = make_hello(*own, HostIndex(1), kClass, scene.exchanges.bytes, scene.exchanges.protection);
  peer.lie(hello);
  hello.mac = hello_mac(*own, hello);
  peer.say(bytes_of(hello));
  hello = peer.said<Hello>(0);
  connection.advance(jobs);
  JobPtr asked;
  const bool stranger = !check_peer(hello, jobs, &asked).ok();
  TL_ASSERT(!stranger || check_head(hello.head).refusal == Refusal::kVersion || peer.heard_nothing());
  const auto challenge = peer.hear<Challenge>();
  TL_ASSERT(connection.state() != State::kProof || same_mac(challenge.mac, challenge_mac(*own, hello, challenge)));
  Proof proof;
  peer.lie(proof.head);
  const bool goes_on_there = proof.head.refusal == Refusal::kNone;
  proof.mac = proof_mac(*own, hello, challenge.nonce, proof, goes_on_there ? scene.offer() : Parameters());
  peer.say(bytes_of(proof));
  if (scene.bytes() > 0) peer.say(scene.offer());
  connection.advance(jobs);
  constexpr std::size_t kProofAt = sizeof hello, kOfferAt = kProofAt + sizeof proof;
  proof = peer.said<Proof>(kProofAt);
  const auto offered = peer.said_bytes(kOfferAt, scene.bytes());
  const auto ready_mac_of = [&](const Ready& ready) {
    return ready_mac(*own, hello, challenge.nonce, ready, offered, scene.offer());
  };
  if (scene.bytes() > 0) {
    Ready ready;
    peer.lie(ready.head);
    ready.mac = ready_mac_of(ready);
    peer.say(bytes_of(ready));
    connection.advance(jobs);
  }
  const bool proven = !stranger && check_head(hello.head).ok() &&
                      check_flow(hello, kClass, scene.exchanges, asked, jobs).ok() && goes_on(proof.head) &&
                      same_mac(proof.mac, proof_mac(*own, hello, challenge.nonce, proof, offered));
  const auto ready = peer.said<Ready>(kOfferAt + scene.bytes());
  const bool exchanged = scene.bytes() == 0 ||
                         (scene.accepted == offered && goes_on(ready.head) && same_mac(ready.mac, ready_mac_of(ready)));
  check_end(connection, scene, proven && exchanged);
}

void test_connecting_end(Scene& scene) {
  const JobTable none;
  Peer& peer = *scene.peer;
  const JobPtr own = make_job(HostIndex(0)), theirs = make_job(HostIndex(1));
  Connection connection(std::move(scene.tested), Endpoint(), {kJob, HostIndex(1), kClass}, own, Time(0),
                        scene.exchanges);
  connection.advance(none);
  const auto hello = peer.hear<Hello>();
  JobTable at_peer;
  at_peer.add(theirs);
  JobPtr asked;
  TL_ASSERT(connection.state() == State::kChallenge);
  TL_ASSERT(check_peer(hello, at_peer, &asked).ok() && asked == theirs);
  TL_ASSERT(check_flow(hello, kClass, scene.exchanges, asked, at_peer).ok());
  Challenge challenge;
  challenge.nonce = random_nonce();
  challenge.cipher = common_cipher(hello, scene.exchanges.protection);
  peer.lie(challenge);
  challenge.mac = challenge_mac(*theirs, hello, challenge);
  peer.say(bytes_of(challenge));
  challenge = peer.said<Challenge>(0);
  connection.advance(none);
  bool proven = goes_on(challenge.head) && same_mac(challenge.mac, challenge_mac(*theirs, hello, challenge)) &&
                challenge.cipher == common_cipher(hello, scene.exchanges.protection);
  const auto proof = peer.hear<Proof>();
  std::vector<std::byte> offer(scene.bytes());
  peer.hear_bytes(offer);
  TL_ASSERT(connection.state() != State::kVerdict ||
            (proven && same_mac(proof.mac, proof_mac(*theirs, hello, challenge.nonce, proof, offer))));
  Verdict verdict;
  peer.lie(verdict);
  const auto mac_of_verdict = [&](const Verdict& said, Parameters answer) {
    return verdict_mac(*theirs, hello, challenge.nonce, said, offer, answer);
  };
  verdict.mac = mac_of_verdict(verdict, scene.offer());
  peer.say(bytes_of(verdict));
  if (scene.bytes() > 0) peer.say(scene.offer());
  connection.advance(none);
  verdict = peer.said<Verdict>(sizeof challenge);
  const auto answer = peer.said_bytes(sizeof challenge + sizeof verdict, scene.bytes());
  proven = proven && goes_on(verdict.head) && same_mac(verdict.mac, mac_of_verdict(verdict, answer)) &&
           (scene.bytes() == 0 || scene.accepted == answer);
  check_end(connection, scene, proven);
}

// Nonces that are the same in every run, so that a finding can be reproduced.
void predictable(void* to, std::size_t size) {
  std::memset(to, 0x33, size);
}

}  // namespace
}  // namespace tensorlane::fuzz

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace tensorlane;
  static randombytes_implementation source = {.implementation_name = [] { return "fuzzer"; },
                                              .random = [] { return std::uint32_t{4}; },
                                              .stir = nullptr,
                                              .uniform = nullptr,
                                              .buf = fuzz::predictable,
                                              .close = nullptr};
  static const bool ready = ::randombytes_set_implementation(&source) == 0 && ::sodium_init() >= 0;
  TL_ASSERT(ready);
  fuzz::Input input(data, size);
  fuzz::Scene scene(input);
  if (scene.connecting)
    fuzz::test_connecting_end(scene);
  else
    fuzz::test_accepting_end(scene);
  return 0;
}
