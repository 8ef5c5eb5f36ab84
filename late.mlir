module @jit_pipe attributes {mhlo.num_partitions = 1 : i32, mhlo.num_replicas = 1 : i32} {
  func.func public @main(%arg0: tensor<6xf32>, %arg1: tensor<3x6x6xf32>, %arg2: tensor<8x6xf32>) -> (tensor<6xf32> {jax.result_info = "result['o']"}, tensor<3x6x6xf32> {jax.result_info = "result['w']"}) {
    %0 = stablehlo.reshape %arg2 : (tensor<8x6xf32>) -> tensor<4x2x6xf32>
    %cst = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %1 = stablehlo.broadcast_in_dim %cst, dims = [] : (tensor<f32>) -> tensor<2x2x6xf32>
    %2 = stablehlo.concatenate %0, %1, dim = 0 : (tensor<4x2x6xf32>, tensor<2x2x6xf32>) -> tensor<6x2x6xf32>
    %cst_0 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %3 = stablehlo.broadcast_in_dim %cst_0, dims = [] : (tensor<f32>) -> tensor<3x2x6xf32>
    %c = stablehlo.constant dense<0> : tensor<i32>
    %4 = stablehlo.broadcast_in_dim %c, dims = [] : (tensor<i32>) -> tensor<1xi32>
    %5 = stablehlo.slice %2 [0:0, 0:2, 0:6] : (tensor<6x2x6xf32>) -> tensor<0x2x6xf32>
    %6 = stablehlo.slice %2 [0:6, 0:2, 0:6] : (tensor<6x2x6xf32>) -> tensor<6x2x6xf32>
    %cst_1 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %7 = stablehlo.broadcast_in_dim %cst_1, dims = [] : (tensor<f32>) -> tensor<0x2x6xf32>
    %cst_2 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %8 = stablehlo.broadcast_in_dim %cst_2, dims = [] : (tensor<f32>) -> tensor<0x3x2x6xf32>
    %cst_3 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %9 = stablehlo.broadcast_in_dim %cst_3, dims = [] : (tensor<f32>) -> tensor<0x3x2x6xf32>
    %cst_4 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %10 = stablehlo.broadcast_in_dim %cst_4, dims = [] : (tensor<f32>) -> tensor<0x3x2x6xf32>
    %11 = stablehlo.slice %6 [0:1, 0:2, 0:6] : (tensor<6x2x6xf32>) -> tensor<1x2x6xf32>
    %12 = stablehlo.reshape %11 : (tensor<1x2x6xf32>) -> tensor<2x6xf32>
    %13:5 = call @closed_call(%4, %arg1, %3, %12) : (tensor<1xi32>, tensor<3x6x6xf32>, tensor<3x2x6xf32>, tensor<2x6xf32>) -> (tensor<3x2x6xf32>, tensor<2x6xf32>, tensor<3x2x6xf32>, tensor<3x2x6xf32>, tensor<3x2x6xf32>)
    %14 = stablehlo.slice %6 [1:2, 0:2, 0:6] : (tensor<6x2x6xf32>) -> tensor<1x2x6xf32>
    %15 = stablehlo.reshape %14 : (tensor<1x2x6xf32>) -> tensor<2x6xf32>
    %16:5 = call @closed_call(%4, %arg1, %13#0, %15) : (tensor<1xi32>, tensor<3x6x6xf32>, tensor<3x2x6xf32>, tensor<2x6xf32>) -> (tensor<3x2x6xf32>, tensor<2x6xf32>, tensor<3x2x6xf32>, tensor<3x2x6xf32>, tensor<3x2x6xf32>)
    %17 = stablehlo.slice %6 [2:3, 0:2, 0:6] : (tensor<6x2x6xf32>) -> tensor<1x2x6xf32>
    %18 = stablehlo.reshape %17 : (tensor<1x2x6xf32>) -> tensor<2x6xf32>
    %19:5 = call @closed_call(%4, %arg1, %16#0, %18) : (tensor<1xi32>, tensor<3x6x6xf32>, tensor<3x2x6xf32>, tensor<2x6xf32>) -> (tensor<3x2x6xf32>, tensor<2x6xf32>, tensor<3x2x6xf32>, tensor<3x2x6xf32>, tensor<3x2x6xf32>)
    %20 = stablehlo.slice %6 [3:4, 0:2, 0:6] : (tensor<6x2x6xf32>) -> tensor<1x2x6xf32>
    %21 = stablehlo.reshape %20 : (tensor<1x2x6xf32>) -> tensor<2x6xf32>
    %22:5 = call @closed_call(%4, %arg1, %19#0, %21) : (tensor<1xi32>, tensor<3x6x6xf32>, tensor<3x2x6xf32>, tensor<2x6xf32>) -> (tensor<3x2x6xf32>, tensor<2x6xf32>, tensor<3x2x6xf32>, tensor<3x2x6xf32>, tensor<3x2x6xf32>)
    %23 = stablehlo.slice %6 [4:5, 0:2, 0:6] : (tensor<6x2x6xf32>) -> tensor<1x2x6xf32>
    %24 = stablehlo.reshape %23 : (tensor<1x2x6xf32>) -> tensor<2x6xf32>
    %25:5 = call @closed_call(%4, %arg1, %22#0, %24) : (tensor<1xi32>, tensor<3x6x6xf32>, tensor<3x2x6xf32>, tensor<2x6xf32>) -> (tensor<3x2x6xf32>, tensor<2x6xf32>, tensor<3x2x6xf32>, tensor<3x2x6xf32>, tensor<3x2x6xf32>)
    %26 = stablehlo.slice %6 [5:6, 0:2, 0:6] : (tensor<6x2x6xf32>) -> tensor<1x2x6xf32>
    %27 = stablehlo.reshape %26 : (tensor<1x2x6xf32>) -> tensor<2x6xf32>
    %28:5 = call @closed_call(%4, %arg1, %25#0, %27) : (tensor<1xi32>, tensor<3x6x6xf32>, tensor<3x2x6xf32>, tensor<2x6xf32>) -> (tensor<3x2x6xf32>, tensor<2x6xf32>, tensor<3x2x6xf32>, tensor<3x2x6xf32>, tensor<3x2x6xf32>)
    %29 = stablehlo.broadcast_in_dim %13#1, dims = [1, 2] : (tensor<2x6xf32>) -> tensor<1x2x6xf32>
    %30 = stablehlo.broadcast_in_dim %16#1, dims = [1, 2] : (tensor<2x6xf32>) -> tensor<1x2x6xf32>
    %31 = stablehlo.broadcast_in_dim %19#1, dims = [1, 2] : (tensor<2x6xf32>) -> tensor<1x2x6xf32>
    %32 = stablehlo.broadcast_in_dim %22#1, dims = [1, 2] : (tensor<2x6xf32>) -> tensor<1x2x6xf32>
    %33 = stablehlo.broadcast_in_dim %25#1, dims = [1, 2] : (tensor<2x6xf32>) -> tensor<1x2x6xf32>
    %34 = stablehlo.broadcast_in_dim %28#1, dims = [1, 2] : (tensor<2x6xf32>) -> tensor<1x2x6xf32>
    %35 = stablehlo.concatenate %29, %30, %31, %32, %33, %34, dim = 0 : (tensor<1x2x6xf32>, tensor<1x2x6xf32>, tensor<1x2x6xf32>, tensor<1x2x6xf32>, tensor<1x2x6xf32>, tensor<1x2x6xf32>) -> tensor<6x2x6xf32>
    %36 = stablehlo.broadcast_in_dim %13#2, dims = [1, 2, 3] : (tensor<3x2x6xf32>) -> tensor<1x3x2x6xf32>
    %37 = stablehlo.broadcast_in_dim %16#2, dims = [1, 2, 3] : (tensor<3x2x6xf32>) -> tensor<1x3x2x6xf32>
    %38 = stablehlo.broadcast_in_dim %19#2, dims = [1, 2, 3] : (tensor<3x2x6xf32>) -> tensor<1x3x2x6xf32>
    %39 = stablehlo.broadcast_in_dim %22#2, dims = [1, 2, 3] : (tensor<3x2x6xf32>) -> tensor<1x3x2x6xf32>
    %40 = stablehlo.broadcast_in_dim %25#2, dims = [1, 2, 3] : (tensor<3x2x6xf32>) -> tensor<1x3x2x6xf32>
    %41 = stablehlo.broadcast_in_dim %28#2, dims = [1, 2, 3] : (tensor<3x2x6xf32>) -> tensor<1x3x2x6xf32>
    %42 = stablehlo.concatenate %36, %37, %38, %39, %40, %41, dim = 0 : (tensor<1x3x2x6xf32>, tensor<1x3x2x6xf32>, tensor<1x3x2x6xf32>, tensor<1x3x2x6xf32>, tensor<1x3x2x6xf32>, tensor<1x3x2x6xf32>) -> tensor<6x3x2x6xf32>
    %43 = stablehlo.broadcast_in_dim %13#3, dims = [1, 2, 3] : (tensor<3x2x6xf32>) -> tensor<1x3x2x6xf32>
    %44 = stablehlo.broadcast_in_dim %16#3, dims = [1, 2, 3] : (tensor<3x2x6xf32>) -> tensor<1x3x2x6xf32>
    %45 = stablehlo.broadcast_in_dim %19#3, dims = [1, 2, 3] : (tensor<3x2x6xf32>) -> tensor<1x3x2x6xf32>
    %46 = stablehlo.broadcast_in_dim %22#3, dims = [1, 2, 3] : (tensor<3x2x6xf32>) -> tensor<1x3x2x6xf32>
    %47 = stablehlo.broadcast_in_dim %25#3, dims = [1, 2, 3] : (tensor<3x2x6xf32>) -> tensor<1x3x2x6xf32>
    %48 = stablehlo.broadcast_in_dim %28#3, dims = [1, 2, 3] : (tensor<3x2x6xf32>) -> tensor<1x3x2x6xf32>
    %49 = stablehlo.concatenate %43, %44, %45, %46, %47, %48, dim = 0 : (tensor<1x3x2x6xf32>, tensor<1x3x2x6xf32>, tensor<1x3x2x6xf32>, tensor<1x3x2x6xf32>, tensor<1x3x2x6xf32>, tensor<1x3x2x6xf32>) -> tensor<6x3x2x6xf32>
    %50 = stablehlo.broadcast_in_dim %13#4, dims = [1, 2, 3] : (tensor<3x2x6xf32>) -> tensor<1x3x2x6xf32>
    %51 = stablehlo.broadcast_in_dim %16#4, dims = [1, 2, 3] : (tensor<3x2x6xf32>) -> tensor<1x3x2x6xf32>
    %52 = stablehlo.broadcast_in_dim %19#4, dims = [1, 2, 3] : (tensor<3x2x6xf32>) -> tensor<1x3x2x6xf32>
    %53 = stablehlo.broadcast_in_dim %22#4, dims = [1, 2, 3] : (tensor<3x2x6xf32>) -> tensor<1x3x2x6xf32>
    %54 = stablehlo.broadcast_in_dim %25#4, dims = [1, 2, 3] : (tensor<3x2x6xf32>) -> tensor<1x3x2x6xf32>
    %55 = stablehlo.broadcast_in_dim %28#4, dims = [1, 2, 3] : (tensor<3x2x6xf32>) -> tensor<1x3x2x6xf32>
    %56 = stablehlo.concatenate %50, %51, %52, %53, %54, %55, dim = 0 : (tensor<1x3x2x6xf32>, tensor<1x3x2x6xf32>, tensor<1x3x2x6xf32>, tensor<1x3x2x6xf32>, tensor<1x3x2x6xf32>, tensor<1x3x2x6xf32>) -> tensor<6x3x2x6xf32>
    %57 = stablehlo.concatenate %7, %35, dim = 0 : (tensor<0x2x6xf32>, tensor<6x2x6xf32>) -> tensor<6x2x6xf32>
    %58 = stablehlo.concatenate %8, %42, dim = 0 : (tensor<0x3x2x6xf32>, tensor<6x3x2x6xf32>) -> tensor<6x3x2x6xf32>
    %59 = stablehlo.concatenate %9, %49, dim = 0 : (tensor<0x3x2x6xf32>, tensor<6x3x2x6xf32>) -> tensor<6x3x2x6xf32>
    %60 = stablehlo.concatenate %10, %56, dim = 0 : (tensor<0x3x2x6xf32>, tensor<6x3x2x6xf32>) -> tensor<6x3x2x6xf32>
    %61 = stablehlo.slice %57 [2:6, 0:2, 0:6] : (tensor<6x2x6xf32>) -> tensor<4x2x6xf32>
    %62 = stablehlo.reshape %61 : (tensor<4x2x6xf32>) -> tensor<8x6xf32>
    %63 = stablehlo.dot_general %62, %arg0, contracting_dims = [1] x [0], precision = [DEFAULT, DEFAULT] : (tensor<8x6xf32>, tensor<6xf32>) -> tensor<8xf32>
    %cst_5 = stablehlo.constant dense<2.000000e+00> : tensor<f32>
    %64 = stablehlo.broadcast_in_dim %cst_5, dims = [] : (tensor<f32>) -> tensor<8xf32>
    %65 = stablehlo.multiply %64, %63 : tensor<8xf32>
    %cst_6 = stablehlo.constant dense<1.000000e+00> : tensor<f32>
    %cst_7 = stablehlo.constant dense<8.000000e+00> : tensor<f32>
    %66 = stablehlo.divide %cst_6, %cst_7 : tensor<f32>
    %67 = stablehlo.broadcast_in_dim %66, dims = [] : (tensor<f32>) -> tensor<8xf32>
    %68 = stablehlo.multiply %67, %65 : tensor<8xf32>
    %69 = stablehlo.dot_general %68, %62, contracting_dims = [0] x [0], precision = [DEFAULT, DEFAULT] : (tensor<8xf32>, tensor<8x6xf32>) -> tensor<6xf32>
    %70 = stablehlo.dot_general %68, %arg0, contracting_dims = [] x [], precision = [DEFAULT, DEFAULT] : (tensor<8xf32>, tensor<6xf32>) -> tensor<8x6xf32>
    %71 = stablehlo.reshape %70 : (tensor<8x6xf32>) -> tensor<4x2x6xf32>
    %cst_8 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %72 = stablehlo.pad %71, %cst_8, low = [2, 0, 0], high = [0, 0, 0], interior = [0, 0, 0] : (tensor<4x2x6xf32>, tensor<f32>) -> tensor<6x2x6xf32>
    %cst_9 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %73 = stablehlo.broadcast_in_dim %cst_9, dims = [] : (tensor<f32>) -> tensor<3x2x6xf32>
    %cst_10 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %74 = stablehlo.broadcast_in_dim %cst_10, dims = [] : (tensor<f32>) -> tensor<3x6x6xf32>
    %75 = stablehlo.slice %72 [0:6, 0:2, 0:6] : (tensor<6x2x6xf32>) -> tensor<6x2x6xf32>
    %76 = stablehlo.slice %72 [6:6, 0:2, 0:6] : (tensor<6x2x6xf32>) -> tensor<0x2x6xf32>
    %77 = stablehlo.slice %58 [0:6, 0:3, 0:2, 0:6] : (tensor<6x3x2x6xf32>) -> tensor<6x3x2x6xf32>
    %78 = stablehlo.slice %58 [6:6, 0:3, 0:2, 0:6] : (tensor<6x3x2x6xf32>) -> tensor<0x3x2x6xf32>
    %79 = stablehlo.slice %59 [0:6, 0:3, 0:2, 0:6] : (tensor<6x3x2x6xf32>) -> tensor<6x3x2x6xf32>
    %80 = stablehlo.slice %59 [6:6, 0:3, 0:2, 0:6] : (tensor<6x3x2x6xf32>) -> tensor<0x3x2x6xf32>
    %81 = stablehlo.slice %60 [0:6, 0:3, 0:2, 0:6] : (tensor<6x3x2x6xf32>) -> tensor<6x3x2x6xf32>
    %82 = stablehlo.slice %60 [6:6, 0:3, 0:2, 0:6] : (tensor<6x3x2x6xf32>) -> tensor<0x3x2x6xf32>
    %83 = stablehlo.slice %75 [5:6, 0:2, 0:6] : (tensor<6x2x6xf32>) -> tensor<1x2x6xf32>
    %84 = stablehlo.reshape %83 : (tensor<1x2x6xf32>) -> tensor<2x6xf32>
    %85 = stablehlo.slice %77 [5:6, 0:3, 0:2, 0:6] : (tensor<6x3x2x6xf32>) -> tensor<1x3x2x6xf32>
    %86 = stablehlo.reshape %85 : (tensor<1x3x2x6xf32>) -> tensor<3x2x6xf32>
    %87 = stablehlo.slice %79 [5:6, 0:3, 0:2, 0:6] : (tensor<6x3x2x6xf32>) -> tensor<1x3x2x6xf32>
    %88 = stablehlo.reshape %87 : (tensor<1x3x2x6xf32>) -> tensor<3x2x6xf32>
    %89 = stablehlo.slice %81 [5:6, 0:3, 0:2, 0:6] : (tensor<6x3x2x6xf32>) -> tensor<1x3x2x6xf32>
    %90 = stablehlo.reshape %89 : (tensor<1x3x2x6xf32>) -> tensor<3x2x6xf32>
    %91:2 = call @closed_call_0(%4, %arg1, %74, %73, %84, %86, %88, %90) : (tensor<1xi32>, tensor<3x6x6xf32>, tensor<3x6x6xf32>, tensor<3x2x6xf32>, tensor<2x6xf32>, tensor<3x2x6xf32>, tensor<3x2x6xf32>, tensor<3x2x6xf32>) -> (tensor<3x6x6xf32>, tensor<3x2x6xf32>)
    %92 = stablehlo.slice %75 [4:5, 0:2, 0:6] : (tensor<6x2x6xf32>) -> tensor<1x2x6xf32>
    %93 = stablehlo.reshape %92 : (tensor<1x2x6xf32>) -> tensor<2x6xf32>
    %94 = stablehlo.slice %77 [4:5, 0:3, 0:2, 0:6] : (tensor<6x3x2x6xf32>) -> tensor<1x3x2x6xf32>
    %95 = stablehlo.reshape %94 : (tensor<1x3x2x6xf32>) -> tensor<3x2x6xf32>
    %96 = stablehlo.slice %79 [4:5, 0:3, 0:2, 0:6] : (tensor<6x3x2x6xf32>) -> tensor<1x3x2x6xf32>
    %97 = stablehlo.reshape %96 : (tensor<1x3x2x6xf32>) -> tensor<3x2x6xf32>
    %98 = stablehlo.slice %81 [4:5, 0:3, 0:2, 0:6] : (tensor<6x3x2x6xf32>) -> tensor<1x3x2x6xf32>
    %99 = stablehlo.reshape %98 : (tensor<1x3x2x6xf32>) -> tensor<3x2x6xf32>
    %100:2 = call @closed_call_0(%4, %arg1, %91#0, %91#1, %93, %95, %97, %99) : (tensor<1xi32>, tensor<3x6x6xf32>, tensor<3x6x6xf32>, tensor<3x2x6xf32>, tensor<2x6xf32>, tensor<3x2x6xf32>, tensor<3x2x6xf32>, tensor<3x2x6xf32>) -> (tensor<3x6x6xf32>, tensor<3x2x6xf32>)
    %101 = stablehlo.slice %75 [3:4, 0:2, 0:6] : (tensor<6x2x6xf32>) -> tensor<1x2x6xf32>
    %102 = stablehlo.reshape %101 : (tensor<1x2x6xf32>) -> tensor<2x6xf32>
    %103 = stablehlo.slice %77 [3:4, 0:3, 0:2, 0:6] : (tensor<6x3x2x6xf32>) -> tensor<1x3x2x6xf32>
    %104 = stablehlo.reshape %103 : (tensor<1x3x2x6xf32>) -> tensor<3x2x6xf32>
    %105 = stablehlo.slice %79 [3:4, 0:3, 0:2, 0:6] : (tensor<6x3x2x6xf32>) -> tensor<1x3x2x6xf32>
    %106 = stablehlo.reshape %105 : (tensor<1x3x2x6xf32>) -> tensor<3x2x6xf32>
    %107 = stablehlo.slice %81 [3:4, 0:3, 0:2, 0:6] : (tensor<6x3x2x6xf32>) -> tensor<1x3x2x6xf32>
    %108 = stablehlo.reshape %107 : (tensor<1x3x2x6xf32>) -> tensor<3x2x6xf32>
    %109:2 = call @closed_call_0(%4, %arg1, %100#0, %100#1, %102, %104, %106, %108) : (tensor<1xi32>, tensor<3x6x6xf32>, tensor<3x6x6xf32>, tensor<3x2x6xf32>, tensor<2x6xf32>, tensor<3x2x6xf32>, tensor<3x2x6xf32>, tensor<3x2x6xf32>) -> (tensor<3x6x6xf32>, tensor<3x2x6xf32>)
    %110 = stablehlo.slice %75 [2:3, 0:2, 0:6] : (tensor<6x2x6xf32>) -> tensor<1x2x6xf32>
    %111 = stablehlo.reshape %110 : (tensor<1x2x6xf32>) -> tensor<2x6xf32>
    %112 = stablehlo.slice %77 [2:3, 0:3, 0:2, 0:6] : (tensor<6x3x2x6xf32>) -> tensor<1x3x2x6xf32>
    %113 = stablehlo.reshape %112 : (tensor<1x3x2x6xf32>) -> tensor<3x2x6xf32>
    %114 = stablehlo.slice %79 [2:3, 0:3, 0:2, 0:6] : (tensor<6x3x2x6xf32>) -> tensor<1x3x2x6xf32>
    %115 = stablehlo.reshape %114 : (tensor<1x3x2x6xf32>) -> tensor<3x2x6xf32>
    %116 = stablehlo.slice %81 [2:3, 0:3, 0:2, 0:6] : (tensor<6x3x2x6xf32>) -> tensor<1x3x2x6xf32>
    %117 = stablehlo.reshape %116 : (tensor<1x3x2x6xf32>) -> tensor<3x2x6xf32>
    %118:2 = call @closed_call_0(%4, %arg1, %109#0, %109#1, %111, %113, %115, %117) : (tensor<1xi32>, tensor<3x6x6xf32>, tensor<3x6x6xf32>, tensor<3x2x6xf32>, tensor<2x6xf32>, tensor<3x2x6xf32>, tensor<3x2x6xf32>, tensor<3x2x6xf32>) -> (tensor<3x6x6xf32>, tensor<3x2x6xf32>)
    %119 = stablehlo.slice %75 [1:2, 0:2, 0:6] : (tensor<6x2x6xf32>) -> tensor<1x2x6xf32>
    %120 = stablehlo.reshape %119 : (tensor<1x2x6xf32>) -> tensor<2x6xf32>
    %121 = stablehlo.slice %77 [1:2, 0:3, 0:2, 0:6] : (tensor<6x3x2x6xf32>) -> tensor<1x3x2x6xf32>
    %122 = stablehlo.reshape %121 : (tensor<1x3x2x6xf32>) -> tensor<3x2x6xf32>
    %123 = stablehlo.slice %79 [1:2, 0:3, 0:2, 0:6] : (tensor<6x3x2x6xf32>) -> tensor<1x3x2x6xf32>
    %124 = stablehlo.reshape %123 : (tensor<1x3x2x6xf32>) -> tensor<3x2x6xf32>
    %125 = stablehlo.slice %81 [1:2, 0:3, 0:2, 0:6] : (tensor<6x3x2x6xf32>) -> tensor<1x3x2x6xf32>
    %126 = stablehlo.reshape %125 : (tensor<1x3x2x6xf32>) -> tensor<3x2x6xf32>
    %127:2 = call @closed_call_0(%4, %arg1, %118#0, %118#1, %120, %122, %124, %126) : (tensor<1xi32>, tensor<3x6x6xf32>, tensor<3x6x6xf32>, tensor<3x2x6xf32>, tensor<2x6xf32>, tensor<3x2x6xf32>, tensor<3x2x6xf32>, tensor<3x2x6xf32>) -> (tensor<3x6x6xf32>, tensor<3x2x6xf32>)
    %128 = stablehlo.slice %75 [0:1, 0:2, 0:6] : (tensor<6x2x6xf32>) -> tensor<1x2x6xf32>
    %129 = stablehlo.reshape %128 : (tensor<1x2x6xf32>) -> tensor<2x6xf32>
    %130 = stablehlo.slice %77 [0:1, 0:3, 0:2, 0:6] : (tensor<6x3x2x6xf32>) -> tensor<1x3x2x6xf32>
    %131 = stablehlo.reshape %130 : (tensor<1x3x2x6xf32>) -> tensor<3x2x6xf32>
    %132 = stablehlo.slice %79 [0:1, 0:3, 0:2, 0:6] : (tensor<6x3x2x6xf32>) -> tensor<1x3x2x6xf32>
    %133 = stablehlo.reshape %132 : (tensor<1x3x2x6xf32>) -> tensor<3x2x6xf32>
    %134 = stablehlo.slice %81 [0:1, 0:3, 0:2, 0:6] : (tensor<6x3x2x6xf32>) -> tensor<1x3x2x6xf32>
    %135 = stablehlo.reshape %134 : (tensor<1x3x2x6xf32>) -> tensor<3x2x6xf32>
    %136:2 = call @closed_call_0(%4, %arg1, %127#0, %127#1, %129, %131, %133, %135) : (tensor<1xi32>, tensor<3x6x6xf32>, tensor<3x6x6xf32>, tensor<3x2x6xf32>, tensor<2x6xf32>, tensor<3x2x6xf32>, tensor<3x2x6xf32>, tensor<3x2x6xf32>) -> (tensor<3x6x6xf32>, tensor<3x2x6xf32>)
    return %69, %136#0 : tensor<6xf32>, tensor<3x6x6xf32>
  }
  func.func private @closed_call(%arg0: tensor<1xi32>, %arg1: tensor<3x6x6xf32>, %arg2: tensor<3x2x6xf32>, %arg3: tensor<2x6xf32>) -> (tensor<3x2x6xf32>, tensor<2x6xf32>, tensor<3x2x6xf32>, tensor<3x2x6xf32>, tensor<3x2x6xf32>) {
    %0 = "stablehlo.scatter"(%arg2, %arg0, %arg3) <{indices_are_sorted = true, scatter_dimension_numbers = #stablehlo.scatter<update_window_dims = [0, 1], inserted_window_dims = [0], scatter_dims_to_operand_dims = [0]>, unique_indices = true}> ({
    ^bb0(%arg4: tensor<f32>, %arg5: tensor<f32>):
      stablehlo.return %arg5 : tensor<f32>
    }) : (tensor<3x2x6xf32>, tensor<1xi32>, tensor<2x6xf32>) -> tensor<3x2x6xf32>
    %1 = stablehlo.dot_general %0, %arg1, batching_dims = [0] x [0], contracting_dims = [2] x [1], precision = [DEFAULT, DEFAULT] : (tensor<3x2x6xf32>, tensor<3x6x6xf32>) -> tensor<3x2x6xf32>
    %2 = stablehlo.tanh %1 : tensor<3x2x6xf32>
    %cst = stablehlo.constant dense<1.000000e+00> : tensor<f32>
    %3 = stablehlo.broadcast_in_dim %cst, dims = [] : (tensor<f32>) -> tensor<3x2x6xf32>
    %4 = stablehlo.subtract %3, %2 : tensor<3x2x6xf32>
    %5 = call @_roll_static(%2) : (tensor<3x2x6xf32>) -> tensor<3x2x6xf32>
    %6 = stablehlo.slice %2 [2:3, 0:2, 0:6] : (tensor<3x2x6xf32>) -> tensor<1x2x6xf32>
    %7 = stablehlo.reshape %6 : (tensor<1x2x6xf32>) -> tensor<2x6xf32>
    return %5, %7, %0, %2, %4 : tensor<3x2x6xf32>, tensor<2x6xf32>, tensor<3x2x6xf32>, tensor<3x2x6xf32>, tensor<3x2x6xf32>
  }
  func.func private @_roll_static(%arg0: tensor<3x2x6xf32>) -> tensor<3x2x6xf32> {
    %0 = stablehlo.slice %arg0 [2:3, 0:2, 0:6] : (tensor<3x2x6xf32>) -> tensor<1x2x6xf32>
    %1 = stablehlo.slice %arg0 [0:2, 0:2, 0:6] : (tensor<3x2x6xf32>) -> tensor<2x2x6xf32>
    %2 = stablehlo.concatenate %0, %1, dim = 0 : (tensor<1x2x6xf32>, tensor<2x2x6xf32>) -> tensor<3x2x6xf32>
    return %2 : tensor<3x2x6xf32>
  }
  func.func private @closed_call_0(%arg0: tensor<1xi32>, %arg1: tensor<3x6x6xf32>, %arg2: tensor<3x6x6xf32>, %arg3: tensor<3x2x6xf32>, %arg4: tensor<2x6xf32>, %arg5: tensor<3x2x6xf32>, %arg6: tensor<3x2x6xf32>, %arg7: tensor<3x2x6xf32>) -> (tensor<3x6x6xf32>, tensor<3x2x6xf32>) {
    %0 = stablehlo.broadcast_in_dim %arg4, dims = [1, 2] : (tensor<2x6xf32>) -> tensor<1x2x6xf32>
    %cst = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %1 = stablehlo.pad %0, %cst, low = [2, 0, 0], high = [0, 0, 0], interior = [0, 0, 0] : (tensor<1x2x6xf32>, tensor<f32>) -> tensor<3x2x6xf32>
    %2 = call @_roll_static_1(%arg3) : (tensor<3x2x6xf32>) -> tensor<3x2x6xf32>
    %3 = stablehlo.add %1, %2 : tensor<3x2x6xf32>
    %4 = stablehlo.multiply %3, %arg7 : tensor<3x2x6xf32>
    %5 = stablehlo.multiply %4, %arg6 : tensor<3x2x6xf32>
    %6 = stablehlo.add %4, %5 : tensor<3x2x6xf32>
    %7 = stablehlo.dot_general %6, %arg5, batching_dims = [0] x [0], contracting_dims = [1] x [1], precision = [DEFAULT, DEFAULT] : (tensor<3x2x6xf32>, tensor<3x2x6xf32>) -> tensor<3x6x6xf32>
    %8 = stablehlo.transpose %7, dims = [0, 2, 1] : (tensor<3x6x6xf32>) -> tensor<3x6x6xf32>
    %9 = stablehlo.add %arg2, %8 : tensor<3x6x6xf32>
    %10 = stablehlo.dot_general %6, %arg1, batching_dims = [0] x [0], contracting_dims = [2] x [2], precision = [DEFAULT, DEFAULT] : (tensor<3x2x6xf32>, tensor<3x6x6xf32>) -> tensor<3x2x6xf32>
    %cst_0 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %11 = stablehlo.broadcast_in_dim %cst_0, dims = [] : (tensor<f32>) -> tensor<2x6xf32>
    %12 = "stablehlo.scatter"(%10, %arg0, %11) <{indices_are_sorted = true, scatter_dimension_numbers = #stablehlo.scatter<update_window_dims = [0, 1], inserted_window_dims = [0], scatter_dims_to_operand_dims = [0]>, unique_indices = true}> ({
    ^bb0(%arg8: tensor<f32>, %arg9: tensor<f32>):
      stablehlo.return %arg9 : tensor<f32>
    }) : (tensor<3x2x6xf32>, tensor<1xi32>, tensor<2x6xf32>) -> tensor<3x2x6xf32>
    return %9, %12 : tensor<3x6x6xf32>, tensor<3x2x6xf32>
  }
  func.func private @_roll_static_1(%arg0: tensor<3x2x6xf32>) -> tensor<3x2x6xf32> {
    %0 = stablehlo.slice %arg0 [0:1, 0:2, 0:6] : (tensor<3x2x6xf32>) -> tensor<1x2x6xf32>
    %1 = stablehlo.slice %arg0 [1:3, 0:2, 0:6] : (tensor<3x2x6xf32>) -> tensor<2x2x6xf32>
    %cst = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %2 = stablehlo.pad %1, %cst, low = [0, 0, 0], high = [1, 0, 0], interior = [0, 0, 0] : (tensor<2x2x6xf32>, tensor<f32>) -> tensor<3x2x6xf32>
    %cst_0 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %3 = stablehlo.pad %0, %cst_0, low = [2, 0, 0], high = [0, 0, 0], interior = [0, 0, 0] : (tensor<1x2x6xf32>, tensor<f32>) -> tensor<3x2x6xf32>
    %4 = stablehlo.add %2, %3 : tensor<3x2x6xf32>
    return %4 : tensor<3x2x6xf32>
  }
}
