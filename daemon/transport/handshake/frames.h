// Frame headers on an authenticated flow: what a transport fills in, and what it checks.
#pragma once

#include <span>
#include <string>

#include "common/protocol/frame.h"
#include "daemon/ports/transport.h"
#include "daemon/transport/handshake/handshake.h"

namespace tensorlane::handshake {

// The header of an operation as it goes on the wire: class, job, epoch, payload length, and the CRC where `payload_crc`
// asks for one.
protocol::FrameHeader outgoing_header(const ports::Outgoing& operation, const ports::FlowKey& flow, const Job& job,
                                      bool payload_crc);

// What is wrong with a header that arrived on this flow: "a frame of epoch 6, expected 7"; empty when it belongs there.
std::string foreign_frame(const protocol::FrameHeader& header, const ports::FlowKey& flow, const Job& job);

// The CRC of a payload that arrived: what is wrong with it; empty when it is right.
std::string wrong_crc(const protocol::FrameHeader& header, std::uint32_t computed);

}  // namespace tensorlane::handshake
